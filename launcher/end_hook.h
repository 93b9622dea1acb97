// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/loop/loop.h"
#include "common/os/spawn.h"
#include "dtrain/v1/journal.pb.h"

namespace dtrain {

// The user's --on-end, as a child of ours, in the job's environment and working directory; what it
// writes goes where our own output does. One that hangs is told of, and ended with what it has
// started. Destroying it leaves it running. Loop thread.
class EndHook {
 public:
  struct Ended {
    std::string job_id;
    int exit_code = 0;
    std::string summary;  // path
  };
  struct Surroundings {
    std::vector<std::string> environment;
    std::string working_directory;
  };
  struct Limits {
    Duration at_most;                           // --on-end-timeout
    absl::AnyInvocable<void(std::string)> say;  // one line for the user
  };
  static Surroundings Of(const v1::Spec& spec);
  static Surroundings OurOwn();
  // `done` is called with its exit code, 128 + the signal that has killed it.
  static absl::StatusOr<std::unique_ptr<EndHook>> Start(loop::Loop& loop,
                                                        const std::string& command,
                                                        Surroundings surroundings,
                                                        const Ended& ended, Limits limits,
                                                        absl::AnyInvocable<void(int)> done);

 private:
  EndHook(loop::Loop& loop, os::Child child, Limits limits, absl::AnyInvocable<void(int)> done);
  void OnEnd();
  void OnSlow();
  void OnTimeout();

  os::Child child_;
  Limits limits_;
  absl::AnyInvocable<void(int)> done_;
  loop::FdWatch watch_;
  loop::Timer slow_;
  loop::Timer timeout_;
};

}  // namespace dtrain
