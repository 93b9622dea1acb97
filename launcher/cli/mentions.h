// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/config/toml.h"
#include "launcher/cli/options.h"

// What the sources of flags of dtrain launch say, before anything is made of it.
namespace dtrain::cli {

// One mention of a flag, and where it stood: a later source is stronger.
enum Source { kConfig, kEnvironment, kCommandLine };
struct Mention {
  Source source;
  int flag;
  std::string value;
  std::string where;  // "--lease", "DTRAIN_LEASE", "lease in /home/me/.config/dtrain/config.toml:3"
};
using Mentions = std::vector<Mention>;

// The configuration file that the command line, DTRAIN_CONFIG or nobody names. Empty: there is
// none. PERMISSION_DENIED: nobody has named it, and another user can have written it.
struct ConfigFile {
  std::string path;
  std::vector<config::Entry> entries;
};
absl::StatusOr<ConfigFile> ReadConfigFile(const Mentions& command_line,
                                          const Surroundings& surroundings);

// Of all sources, the weakest first. `words`: of the command line.
absl::StatusOr<Mentions> CollectAll(const std::vector<std::string>& words,
                                    const Surroundings& surroundings);
// Names of variables that nobody reads, and that most likely were meant for a flag: warns of them.
void WarnOfMisspelt(const Surroundings& surroundings);
// Flags that answer the same question: from one source they contradict each other; otherwise the
// stronger source's answer makes the weaker's void.
absl::Status ResolveContradictions(Mentions& mentions);
// The strongest of that flag; -1: there is none.
int FindMention(const Mentions& mentions, absl::string_view name);

// INVALID_ARGUMENT: "WHERE: what `status` says".
absl::Status At(absl::string_view where, const absl::Status& status);

}  // namespace dtrain::cli
