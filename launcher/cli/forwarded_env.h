// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtrain/v1/job.pb.h"
#include "launcher/cli/options.h"

namespace dtrain::cli {

// The variables of --env-file's files, NAME=VALUE each, in their order. The format is docker's: one
// a line, the value as it stands; empty lines and those that begin with # are skipped; a name alone
// passes on our own variable, if there is one. Errors are InvalidArgument and name file and line,
// but not what is there, which may be part of a secret.
absl::StatusOr<std::vector<std::string>> ReadEnvFiles(const std::vector<std::string>& paths,
                                                      const Surroundings& surroundings);

// Linux refuses to execute with a longer NAME=VALUE (MAX_ARG_STRLEN, its NUL included).
inline constexpr size_t kMaxVariableBytes = 131072;
// Of all variables and arguments with their pointers. Linux takes 2 MiB by default (a quarter of
// the stack limit); the rest is left to the variables that the node and dtrain add.
inline constexpr size_t kMaxEnvironmentBytes = 1536 * 1024;

struct ForwardOptions {
  bool all = true;                   // --env all | none
  std::vector<std::string> exports;  // -x NAME or NAME=VALUE; the last of a name wins
  size_t argv_bytes = 0;             // what the command line takes of kMaxEnvironmentBytes
};

struct ForwardedEnv {
  std::vector<v1::EnvVar> variables;        // sorted by name, each once
  std::vector<std::string> explicit_names;  // those of -x, sorted
};

// What the workers get of `environment` (NAME=VALUE each): everything but names that belong to
// this host, to an outer launcher, to dtrain's own flags, and shell functions; then -x. Fails when
// a name is empty, unknown or not a name, and with the cap and the name when something is too big.
absl::StatusOr<ForwardedEnv> BuildForwardedEnv(const std::vector<std::string>& environment,
                                               const ForwardOptions& options);

// Whether a variable can have this name and still travel as text: printable ASCII, not too long.
bool IsPlainName(absl::string_view name);

// "DTRAIN_START_TIMEOUT" for the flag "start-timeout".
std::string FlagVariable(absl::string_view flag);

}  // namespace dtrain::cli
