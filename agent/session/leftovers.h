// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "agent/containers/removal.h"
#include "agent/spawn/processes.h"
#include "common/loop/loop.h"
#include "dtrain/v1/shepherd.pb.h"

namespace dtrain::session {

// What a shepherd leaves that died or hangs: containers, which its user's runtime must remove, and
// processes. Loop thread.
class Leftovers {
 public:
  using Warn = absl::AnyInvocable<void(const std::string& what)>;  // the launcher
  Leftovers(loop::Loop& loop, spawn::Processes& processes, uid_t owner, Warn warn)
      : loop_(loop), processes_(processes), owner_(owner), warn_(std::move(warn)) {}

  // The last report is what counts.
  void OnReport(const v1::Report& report);
  // Ends all of it, as its clients and then the shepherd would have; once. `holder`: for the log.
  // `done` may destroy this.
  void End(std::string holder, loop::Task done);
  // Containers have had their time: the rest is ended now.
  void SkipContainers();

 private:
  void EndContainers();
  void EndProcesses();
  void Tell(const std::string& what);

  loop::Loop& loop_;
  spawn::Processes& processes_;
  const uid_t owner_;
  Warn warn_;
  std::vector<containers::Removable> containers_;
  std::string holder_;
  loop::Task done_;
  std::unique_ptr<containers::Removal> removal_;  // while it is under way
};

}  // namespace dtrain::session
