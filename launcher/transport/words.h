// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "launcher/transport/transport.h"

// The --rsh template: split into words like a shell does, but by no shell; and OpenSSH's command.
// Pure.
namespace dtrain::transport {

// Words separated by blanks; '...', "..." and backslash quote as in sh. Nothing is expanded.
absl::StatusOr<std::vector<std::string>> SplitWords(absl::string_view text);

// The words with {host}, {user} and {port} replaced, a host appended when no word names it (Open
// MPI's convention). A user or port the target asks for and no word can carry is an error.
// `own_user` stands for a {user} the target leaves open.
absl::StatusOr<std::vector<std::string>> ExpandWords(const std::vector<std::string>& words,
                                                     const Target& target,
                                                     absl::string_view own_user);

// OpenSSH's ssh to the target, as the connections by libssh: it asks nothing, and a host that is
// silent for `silence` is lost. `config_file` and `port` as in SshOptions. `beyond`: what libssh
// could not do, if that is the reason.
std::vector<std::string> OpenSshWords(const Target& target, const std::string& config_file,
                                      uint16_t port, Duration connect_timeout, Duration silence,
                                      absl::string_view beyond = "");

}  // namespace dtrain::transport
