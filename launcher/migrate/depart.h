// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "launcher/detached/jobs.h"
#include "launcher/migrate/options.h"

namespace dtrain::migrate {

// The end of `dtrain migrate` at which the job is. Says on stdout where it went. On failure the job
// goes on here, as before or with a launcher that was started anew, which is said on stderr.
absl::Status Depart(const detached::Jobs& jobs, const detached::JobFolder& job,
                    const Options& options);

// How a job fared that was to be started there.
struct Started {
  std::string host;              // as it calls itself
  std::string supervisor;        // for people; may be empty
  std::optional<int> exit_code;  // it has ended; -1: not known
  int signal = 0;                // we were told to wait no longer
};
// A job that was accepted here, and has no launcher yet, gets it there. Returns when its workers
// run, or, with `no_wait`, when it is there. What the launcher says meanwhile goes to stderr. On
// failure no job is left here.
absl::StatusOr<Started> StartThere(const detached::Jobs& jobs, const detached::JobFolder& job,
                                   const Options& options, bool no_wait);

}  // namespace dtrain::migrate
