// SPDX-License-Identifier: Apache-2.0
#include "launcher/history/retention.h"

#include <chrono>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "launcher/cli/history_config.h"
#include "launcher/cli/options.h"

namespace dtrain::history {

absl::StatusOr<detached::Retention> ReadRetention(const std::string& directory) {
  cli::Surroundings here = cli::ProcessSurroundings();
  here.read = [&directory, read = std::move(here.read)](const std::string& path) {
    const bool is_whole = directory.empty() || absl::StartsWith(path, "/");
    return read(is_whole ? path : absl::StrCat(directory, "/", path));
  };
  const auto config = cli::ReadHistoryConfig(here);
  if (!config.ok()) return config.status();
  detached::Retention keep;
  if (config->keep) {
    keep.age =
        absl::FromChrono(std::chrono::duration_cast<std::chrono::nanoseconds>(*config->keep));
  }
  keep.jobs = config->jobs.value_or(keep.jobs);
  keep.bytes = config->bytes.value_or(keep.bytes);
  return keep;
}

}  // namespace dtrain::history
