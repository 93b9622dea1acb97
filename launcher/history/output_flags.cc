// SPDX-License-Identifier: Apache-2.0
#include "launcher/history/output_flags.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "launcher/cli/options.h"
#include "launcher/cli/recorded.h"
#include "launcher/story/story.h"

namespace dtrain::history {

output::Options OutputOptionsOf(const detached::JobFolder& job) {
  const auto spec = job.ReadSpec();
  if (!spec.ok()) return {};
  const std::vector<std::string> words = story::WordsOf(*spec);
  if (words.empty() || words[0] != "launch") return {};
  cli::Surroundings surroundings;
  for (const v1::EnvVar& variable : spec->environment()) {
    surroundings.environment.push_back(absl::StrCat(variable.name(), "=", variable.value()));
  }
  // Of an ended job's environment only these are kept.
  surroundings.environment = cli::WithFlagVariablesOf(*spec, std::move(surroundings.environment));
  surroundings.working_directory = spec->working_directory();
  surroundings.read = [&](const std::string& path) -> absl::StatusOr<std::string> {
    for (const v1::SourceFile& file : spec->files()) {
      if (file.path() == path && !file.is_script() && file.status_code() == 0) return file.text();
    }
    return std::string();  // a job that was in the foreground has no files
  };
  const auto parsed = cli::ParseLaunch(words, surroundings);
  if (!parsed.ok()) return {};
  output::Options options;
  options.tag = parsed->launch.output.tag;
  options.fold = parsed->launch.output.fold;
  options.shown = parsed->launch.output.shown;
  return options;
}

}  // namespace dtrain::history
