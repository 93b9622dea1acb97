// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "launcher/elastic/events.h"
#include "launcher/elastic/failures.h"
#include "launcher/elastic/host_book.h"
#include "launcher/elastic/options.h"
#include "launcher/elastic/out.h"
#include "launcher/elastic/runs.h"

namespace dtrain::elastic {

// What ElasticCore does while it gathers: who is in the next round is decided, those who are not
// are told to end, and newcomers begin. Pure.
class Forming {
 public:
  enum class Result {
    kWaits,      // for hosts, or for runs that make room
    kForms,      // all runs have begun
    kStateLost,  // nobody of the last round could give the state to newcomers
    kNotEnough,  // and no other host can come
  };

  Forming(const ElasticOptions& options, HostBook& book, RunTable& runs, Failures& failures,
          Out& out)
      : options_(options), book_(book), runs_(runs), failures_(failures), out_(out) {}

  // The wait for the next round begins: it is announced again.
  void Begin() { said_ = false; }
  void SetMissing(std::vector<MissingHost> missing) { missing_ = std::move(missing); }
  // `round` is to be formed, by then.
  Result Try(TimePoint now, uint64_t round, uint32_t resets, TimePoint by);
  // The round that could be made now; "4 ranks are needed (-np), 2 are there"; "; missing: ...".
  Plan plan() const { return MakePlan(options_.most, book_.usable(), runs_.all()); }
  std::string Want(uint64_t round) const;
  std::string Missing() const;

 private:
  bool MayBeEnough(const Least& least) const;
  bool MakeRoom(const Plan& plan);
  void Form(const Plan& plan, uint64_t round, uint32_t resets);

  const ElasticOptions& options_;
  HostBook& book_;
  RunTable& runs_;
  Failures& failures_;
  Out& out_;
  std::vector<MissingHost> missing_;  // listed, but not there
  bool said_ = false;
};

}  // namespace dtrain::elastic
