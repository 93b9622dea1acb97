// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "agent/shepherd/helper.h"
#include "common/loop/loop.h"
#include "common/os/unique_fd.h"
#include "dtrain/v1/job.pb.h"
#include "dtrain/v1/pmix.pb.h"

namespace dtrain::shepherd {

// What a node's PMIx server and the launcher say to each other, remembered as far as a launcher
// must hear it that takes the job over. Pure.
class PmixTalk {
 public:
  // From the server; what goes up. Absent: it answers a launcher that has lost the job.
  std::optional<v1::PmixUp> OnUp(v1::PmixUp up);
  // From the launcher; what goes down.
  v1::PmixDown OnDown(v1::PmixDown down);
  // Another launcher has come: what is to be said to it. Of its predecessor's questions nothing is
  // answered any more.
  std::vector<v1::PmixUp> OnAnother();
  // What the rank is in, should it end now.
  v1::WorkerExit::World WorldOf(uint32_t rank) const;

 private:
  using Ranks = std::vector<uint32_t>;

  bool asks_ = false;
  std::map<Ranks, v1::PmixUp> fences_;
  std::map<uint64_t, v1::PmixUp> wanted_;  // by the server's id
  std::set<uint32_t> joined_, left_;       // those that left are in both, until they join again
  // The launcher's ids of what it wants, by ours: each launcher begins with the same.
  std::map<uint64_t, uint64_t> questions_;
  uint64_t last_question_ = 0;
};

// The namespace of the job's ranks.
std::string PmixName(const v1::JobPart& part);

// Where a node's ranks find PMIx: a port of 127.0.0.1, and behind it a helper. Loop thread.
class PmixGate {
 public:
  struct Hooks {
    absl::AnyInvocable<void(v1::PmixUp)> up;
    absl::AnyInvocable<void(uint32_t rank, int code)> abort;
    // No rank can use PMIx any more, and some would: what was tried, why it failed, what to do.
    absl::AnyInvocable<void(std::string why, bool ended)> failed;
  };
  // `program`: of the helper, which is called with "pmix". `part` must stay. UNAVAILABLE: there is
  // no 127.0.0.1 here.
  static absl::StatusOr<std::unique_ptr<PmixGate>> Open(loop::Loop& loop, std::string program,
                                                        const v1::JobPart& part, Hooks hooks);

  uint16_t port() const { return port_; }
  // From now on ranks may come. `env` gives a worker's, "NAME=value" each, of which the helper gets
  // what libraries are found by. `folders`: its own is made in the first that takes it.
  using Environment = absl::AnyInvocable<std::vector<std::string>()>;
  void Serve(Environment env, std::vector<std::string> folders);
  void OnDown(const v1::PmixDown& down);
  Helper& helper() { return helper_; }
  // Ends the helper and removes what it has left.
  void End(loop::Task done);

 private:
  PmixGate(loop::Loop& loop, std::string program, const v1::JobPart& part, Hooks hooks,
           os::UniqueFd listener, uint16_t port);
  absl::StatusOr<Helper::Hooks::Beginning> Begin();
  void OnFrame(absl::string_view frame);
  void OnEnded(const std::string& how);
  void Fail(std::string why, bool ended);

  const v1::JobPart& part_;
  Hooks hooks_;
  const uint16_t port_;
  Environment env_;
  std::vector<std::string> folders_;
  std::string folder_;  // the helper's; empty: none yet
  bool used_ = false;   // a rank has connected
  bool failed_ = false;
  int starts_ = 0;
  Helper helper_;
};

}  // namespace dtrain::shepherd
