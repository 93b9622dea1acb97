// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
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
// writes goes where our own output does. One that hangs is reported, and ended with what it has
// started; one that cannot be killed is not waited for. Destroying it leaves it running. Loop
// thread.
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
  // Its exit code, or 128 + the signal that killed it; none: it cannot be killed, as was said.
  using Done = absl::AnyInvocable<void(std::optional<int>)>;
  static absl::StatusOr<std::unique_ptr<EndHook>> Start(loop::Loop& loop,
                                                        const std::string& command,
                                                        Surroundings surroundings,
                                                        const Ended& ended, Limits limits,
                                                        Done done);

 private:
  EndHook(loop::Loop& loop, os::Child child, Limits limits, Done done);
  void OnEnd();
  void OnSlow();
  void OnTimeout();
  void Kill();
  void GiveUp();
  void Finish(std::optional<int> code);

  os::Child child_;
  Limits limits_;
  Done done_;
  loop::FdWatch watch_;
  loop::Timer slow_;
  loop::Timer timeout_;
};

}  // namespace dtrain
