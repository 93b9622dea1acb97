// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "launcher/detached/job_folder.h"
#include "launcher/status/command_options.h"
#include "launcher/status/runtime_dir.h"

// What ps, status and stop do for detached jobs.
namespace dtrain::status {

// For ps: detached jobs that run but for those of `known`, and with `all` those that have ended,
// the last one first, each as an object of the form of /v1/jobs/{id}.
struct DetachedJobs {
  std::vector<nlohmann::ordered_json> running;
  std::vector<nlohmann::ordered_json> ended;
  std::vector<std::string> left;                       // lines: their workers that may live on
  size_t more_ended = 0;                               // that were left out
  std::map<std::string, nlohmann::ordered_json> told;  // by id, of `known`: by their folders
};
absl::StatusOr<DetachedJobs> ListDetached(const std::set<std::string>& known, bool all);
// What a launcher's own answer does not have: its name, and who controls and who supervises it.
void AddFromFolder(const nlohmann::ordered_json& told, nlohmann::ordered_json& job);

// Has a launcher hand its job over to one without a terminal, and waits until that one has it.
absl::Status DetachLive(const LiveJob& job, bool json);

// Ends a job, starting a launcher for that where it has none, and waits until it is gone.
absl::Status StopDetached(const detached::JobFolder& job, const CommandOptions& options);
// Ends a launcher and waits for its end. `is_its_launcher` is asked once nothing else can get its
// number.
absl::Status StopLauncher(const std::string& id, pid_t launcher, int signal,
                          absl::FunctionRef<bool()> is_its_launcher);

}  // namespace dtrain::status
