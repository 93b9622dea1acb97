// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "agent/shepherd/workers.h"
#include "common/loop/loop.h"
#include "dtrain/v1/job.pb.h"

namespace dtrain::shepherd {

// The ranks that asked for the job's abort, by whatever protocol. The exit of such a rank is what
// tells the launcher, so it is ended if it does not end by itself. Loop thread.
class Aborts {
 public:
  Aborts(loop::Loop& loop, Workers& workers) : loop_(loop), workers_(workers) {}

  // `code`: for the job to exit with; nullopt: that of the rank's exit. Its process may have ended.
  void Ask(uint32_t rank, std::optional<int> code);
  // Adds to the rank's exit that it has asked, if it has.
  void AddTo(v1::WorkerExit& exit) const;

 private:
  struct Abort {
    std::optional<int> code;
    int64_t unix_nanos = 0;  // when the rank asked for it
    std::unique_ptr<loop::Timer> timer;
  };

  loop::Loop& loop_;
  Workers& workers_;
  std::map<uint32_t, Abort> aborts_;  // by rank
};

}  // namespace dtrain::shepherd
