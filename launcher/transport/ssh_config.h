// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "launcher/transport/transport.h"

// The user's ssh configuration. OpenSSH itself is asked what it says for a host (`ssh -G`), so that
// Match, Include, patterns and defaults mean exactly what they mean to the user's ssh.
namespace dtrain::transport {

struct SshSettings {
  enum class HostKeyCheck { kStrict, kAcceptNew, kOff };

  std::string host_name;
  uint16_t port = 22;
  std::string user;
  std::string host_key_alias;  // the name in known_hosts, when it is another
  HostKeyCheck host_key_check = HostKeyCheck::kStrict;
  std::vector<std::string> user_known_hosts;
  std::vector<std::string> global_known_hosts;
  std::vector<std::string> identity_files;  // not expanded
  bool identities_only = false;
  bool public_key_allowed = true;
  std::string identity_agent;  // empty: $SSH_AUTH_SOCK
  std::string proxy_command;   // not expanded; empty: none
  std::string proxy_jump;
  Duration jump_silence = std::chrono::seconds(15);  // ours: after which a jump host is given up
  std::string address_family;                        // any, inet, inet6
  std::string bind_address;
  std::string ciphers, macs, key_exchange, host_key_algorithms, public_key_algorithms;
  int required_rsa_size = 0;              // bits; 0: libssh's own minimum
  std::string control_path;               // expanded; empty: none
  bool kerberos_allowed = true;           // GSSAPIAuthentication
  std::vector<std::string> only_openssh;  // keywords that are set and that libssh does not obey
};

// Reads what `ssh -G` prints. Keywords that mean nothing here are skipped; those that are not known
// count as only OpenSSH's. Pure.
SshSettings ParseSshSettings(absl::string_view dump);

// Replaces the tokens %h %p %r %n %u %d %% and a leading ~/ in a path or command of the
// configuration. Others are an error that names the token. Pure.
struct TokenValues {
  std::string host, original_host, port, remote_user, local_user, home;
};
absl::StatusOr<std::string> ExpandTokens(absl::string_view text, const TokenValues& values);
TokenValues TokensFor(const SshSettings& settings, const Target& target);

// What only OpenSSH's own client obeys of this configuration and of the files that it names, for
// example "RevokedHostKeys"; empty: libssh can connect. Reads files.
std::string WhatNeedsOpenSsh(const SshSettings& settings, const TokenValues& tokens);

// The ciphers of the list, those first that a CPU's AES instructions make fast. Pure.
std::string FastCiphersFirst(absl::string_view ciphers);

// Blocks for some milliseconds. `config_file` empty: the user's and the system's. `cancel`: gives
// up when readable.
absl::StatusOr<SshSettings> ReadSshSettings(const Target& target, const std::string& config_file,
                                            int cancel);

}  // namespace dtrain::transport
