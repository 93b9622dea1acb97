// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "launcher/detached/job_folder.h"

namespace dtrain::story {

// On another machine the name means that one.
bool MeansThisMachine(absl::string_view host);

// Whether a launcher on this machine can reach the job's workers, as far as its journal says.
// FAILED_PRECONDITION: they run on "localhost" of another one. Blocks.
absl::Status CheckMachine(const detached::JobFolder& job);

// Starts a launcher for a job that has not ended, where none has it, and waits until it has. What
// to say about it; empty: there was nothing to do. DATA_LOSS: its journal is damaged, and its
// folder has been moved to lost+found. FAILED_PRECONDITION: a newer version has written it, or the
// new launcher could not take it over, or must be started on another machine. Blocks, up to 20 s;
// meanwhile calls `beat` many times a second, unless the job's file system does not answer.
absl::StatusOr<std::string> EnsureLauncher(const detached::JobFolder& job,
                                           absl::FunctionRef<void()> beat);

// For those who wait for the end of a job: has it looked after, also when its launcher is lost
// meanwhile. Cheap to call often.
class Care {
 public:
  explicit Care(detached::JobFolder job) : job_(std::move(job)) {}
  // As EnsureLauncher, which it calls now and then.
  absl::StatusOr<std::string> Look(TimePoint now, absl::FunctionRef<void()> beat);

 private:
  detached::JobFolder job_;
  TimePoint next_look_{};
  TimePoint next_try_{};
};

}  // namespace dtrain::story
