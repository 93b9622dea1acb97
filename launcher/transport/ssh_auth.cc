// SPDX-License-Identifier: Apache-2.0
#include <libssh/libssh.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/text.h"
#include "common/log/log.h"
#include "launcher/transport/bootstrap.h"
#include "launcher/transport/passing.h"
#include "launcher/transport/ssh_session.h"

namespace dtrain::transport {
namespace {

constexpr uint16_t kSshPort = 22;

struct FreeKey {
  void operator()(ssh_key key) const { ssh_key_free(key); }
};
using Key = std::unique_ptr<std::remove_pointer_t<ssh_key>, FreeKey>;

std::string LastError(ssh_session session) { return Escape(ssh_get_error(session), 300); }

std::string Fingerprint(ssh_session session) {
  ssh_key raw = nullptr;
  if (ssh_get_server_publickey(session, &raw) != SSH_OK) return "";
  Key key(raw);
  unsigned char* hash = nullptr;
  size_t size = 0;
  if (ssh_get_publickey_hash(raw, SSH_PUBLICKEY_HASH_SHA256, &hash, &size) != 0) return "";
  char* text = ssh_get_fingerprint_hash(SSH_PUBLICKEY_HASH_SHA256, hash, size);
  std::string out =
      absl::StrCat(ssh_key_type_to_char(ssh_key_type(raw)), " ", text != nullptr ? text : "");
  ssh_string_free_char(text);
  ssh_clean_pubkey_hash(&hash);
  return out;
}

std::string KnownName(const SshSettings& settings) {
  if (!settings.host_key_alias.empty()) return settings.host_key_alias;
  if (settings.port == kSshPort) return settings.host_name;
  return absl::StrCat("[", settings.host_name, "]:", settings.port);
}

// A key file was refused a passphrase: there is nobody to ask, and nothing of ours may prompt.
int NoPassphrase(const char*, char*, size_t, int, int, void* asked) {
  *static_cast<bool*>(asked) = true;
  return -1;
}

struct Attempt {
  bool succeeded = false;
  absl::Status fatal;
  std::vector<std::string> tried;
  std::vector<std::string> locked;  // accepted by the server, but with a passphrase
};

// What a step of authentication told. True: no further step.
bool Settle(ssh_session session, int rc, Attempt* attempt) {
  if (rc == SSH_AUTH_SUCCESS) {
    attempt->succeeded = true;
    return true;
  }
  if (rc == SSH_AUTH_PARTIAL) {
    attempt->fatal = absl::PermissionDeniedError(
        "the server asks for a second factor after the key, and dtrain never prompts");
    return true;
  }
  if (rc != SSH_AUTH_ERROR || ssh_is_connected(session)) return false;
  std::string error = LastError(session);
  absl::string_view hint = absl::StrContains(error, "Too many authentication failures")
                               ? "; name the right key with IdentityFile and IdentitiesOnly=yes in "
                                 "the ssh configuration"
                               : "";
  attempt->fatal =
      absl::PermissionDeniedError(absl::StrCat("the server ended the login: ", error, hint));
  return true;
}

bool TryAgent(ssh_session session, Attempt* attempt) {
  // Only this call knows whether there is an agent: without one it sends nothing.
  int rc = ssh_userauth_agent(session, nullptr);
  if (ssh_userauth_list(session, nullptr) != 0) attempt->tried.push_back("ssh-agent");
  return Settle(session, rc, attempt);
}

// By hand, because ssh_userauth_publickey_auto writes .pub files beside people's keys.
bool TryFile(ssh_session session, const std::string& file, Attempt* attempt) {
  ssh_key raw = nullptr;
  bool asked = false;
  int rc = ssh_pki_import_privkey_file(file.c_str(), nullptr, NoPassphrase, &asked, &raw);
  Key key(raw);
  if (rc == SSH_EOF) return false;  // no such file
  attempt->tried.push_back(Escape(file));
  // Offered unasked: a key that is refused costs the same turn, one that is taken one turn less.
  if (rc == SSH_OK) return Settle(session, ssh_userauth_publickey(session, nullptr, raw), attempt);
  if (!asked) return false;
  raw = nullptr;
  if (ssh_pki_import_pubkey_file((file + ".pub").c_str(), &raw) != SSH_OK) {
    attempt->locked.push_back(Escape(file));
    return false;
  }
  Key public_key(raw);
  rc = ssh_userauth_try_publickey(session, nullptr, raw);
  if (rc == SSH_AUTH_SUCCESS) {
    attempt->locked.push_back(Escape(file));
    return false;
  }
  return Settle(session, rc, attempt);
}

void TryAll(ssh_session session, const SshSettings& settings, const TokenValues& tokens,
            Attempt* attempt) {
  bool agent = settings.identity_agent != "none";
  if (agent && !settings.identities_only && TryAgent(session, attempt)) return;
  for (const std::string& name : settings.identity_files) {
    auto file = ExpandTokens(name, tokens);
    if (!file.ok()) {
      attempt->fatal = file.status();
      return;
    }
    if (TryFile(session, *file, attempt)) return;
  }
  // libssh cannot ask the agent for one key alone: all of them come last then.
  if (agent && settings.identities_only) TryAgent(session, attempt);
}

// What the server wants people to read before they log in: one that boots says so here.
std::string Banner(ssh_session session) {
  char* text = ssh_get_issue_banner(session);
  if (text == nullptr) return "";
  std::string last = LastLines(text);
  ssh_string_free_char(text);
  return last;
}

std::string MethodNames(int methods) {
  std::vector<std::string> names;
  if (methods & SSH_AUTH_METHOD_PUBLICKEY) names.push_back("publickey");
  if (methods & SSH_AUTH_METHOD_PASSWORD) names.push_back("password");
  if (methods & SSH_AUTH_METHOD_INTERACTIVE) names.push_back("keyboard-interactive");
  if (methods & SSH_AUTH_METHOD_HOSTBASED) names.push_back("hostbased");
  if (methods & SSH_AUTH_METHOD_GSSAPI_MIC) names.push_back("gssapi-with-mic");
  return names.empty() ? "none" : absl::StrJoin(names, ", ");
}

absl::Status UnknownKey(ssh_session session, const SshSettings& settings,
                        const std::vector<std::string>& files, const std::string& file) {
  return absl::UnauthenticatedError(
      absl::StrCat("the host key ", Fingerprint(session), " of ", Escape(KnownName(settings)),
                   " is in no known_hosts file (", Escape(absl::StrJoin(files, ", "), 400), ")",
                   "; connect once with ssh and check it, or add it with: ssh-keyscan -p ",
                   settings.port, " ", Escape(settings.host_name), " >> ", Escape(file)));
}

absl::Status ChangedKey(ssh_session session, const SshSettings& settings, const std::string& file) {
  return absl::UnauthenticatedError(
      absl::StrCat("the host key of ", Escape(KnownName(settings)), " has changed: it is ",
                   Fingerprint(session), " now and another one in ", Escape(file),
                   ". Another machine may be answering in its place. If the machine was "
                   "reinstalled: ssh-keygen -f ",
                   Escape(file), " -R '", Escape(KnownName(settings)), "'"));
}

// As OpenSSH does: an entry without a port is good for every port of the host.
bool KnownWithoutPort(ssh_session session, const SshSettings& settings,
                      const std::vector<std::string>& files) {
  if (settings.port == kSshPort || !settings.host_key_alias.empty()) return false;
  unsigned int port = kSshPort;
  ssh_options_set(session, SSH_OPTIONS_PORT, &port);
  bool known = false;
  for (const std::string& file : files) {
    ssh_options_set(session, SSH_OPTIONS_KNOWNHOSTS, file.c_str());
    known |= ssh_session_is_known_server(session) == SSH_KNOWN_HOSTS_OK;
  }
  port = settings.port;
  ssh_options_set(session, SSH_OPTIONS_PORT, &port);
  return known;
}

}  // namespace

absl::Status CheckHostKey(ssh_session session, const SshSettings& settings,
                          const std::vector<std::string>& user_files) {
  std::vector<std::string> files = user_files;
  files.insert(files.end(), settings.global_known_hosts.begin(), settings.global_known_hosts.end());
  bool changed = false, other_type = false;
  std::string changed_file;
  for (const std::string& file : files) {
    ssh_options_set(session, SSH_OPTIONS_KNOWNHOSTS, file.c_str());
    ssh_options_set(session, SSH_OPTIONS_GLOBAL_KNOWNHOSTS, "/dev/null");
    switch (ssh_session_is_known_server(session)) {
      case SSH_KNOWN_HOSTS_OK:
        return absl::OkStatus();
      case SSH_KNOWN_HOSTS_CHANGED:
        if (!changed) changed_file = file;
        changed = true;
        break;
      case SSH_KNOWN_HOSTS_OTHER:
        if (!changed) changed_file = file;
        other_type = true;
        break;
      default:
        break;
    }
  }
  if (!changed && !other_type && KnownWithoutPort(session, settings, files)) {
    return absl::OkStatus();
  }
  using Check = SshSettings::HostKeyCheck;
  std::string file = user_files.empty() ? "/dev/null" : user_files.front();
  if ((changed || other_type) && settings.host_key_check != Check::kOff) {
    return ChangedKey(session, settings, changed_file);
  }
  if (settings.host_key_check == Check::kStrict) return UnknownKey(session, settings, files, file);
  // The user's own StrictHostKeyChecking says so.
  log::Warn(absl::StrCat("host key of ", Escape(KnownName(settings)),
                         changed ? " has changed" : " is new",
                         "; accepted because of "
                         "StrictHostKeyChecking in the ssh configuration"));
  if (changed || other_type) return absl::OkStatus();
  ssh_options_set(session, SSH_OPTIONS_KNOWNHOSTS, file.c_str());
  if (ssh_session_update_known_hosts(session) != SSH_OK) {
    log::Warn(absl::StrCat("could not add the host key to ", Escape(file)));
  }
  return absl::OkStatus();
}

absl::Status Authenticate(ssh_session session, const SshSettings& settings,
                          const TokenValues& tokens) {
  Attempt attempt;
  if (settings.public_key_allowed) TryAll(session, settings, tokens, &attempt);
  // Last, because it costs a turn: a server may let people in without, and else it says what it
  // would take.
  if (!attempt.succeeded && attempt.fatal.ok() && ssh_userauth_list(session, nullptr) == 0) {
    Settle(session, ssh_userauth_none(session, nullptr), &attempt);
  }
  if (attempt.succeeded) return absl::OkStatus();
  const std::string said = Banner(session);
  if (!attempt.fatal.ok()) {
    if (said.empty()) return attempt.fatal;
    return PassingError(
        absl::PermissionDeniedError(absl::StrCat(attempt.fatal.message(), "; it says: ", said)),
        WhatPassesIn(said));
  }
  std::string message = absl::StrCat("log in as ", Escape(settings.user), ": ");
  if (!attempt.locked.empty()) {
    return absl::PermissionDeniedError(
        absl::StrCat(message, "the key ", absl::StrJoin(attempt.locked, ", "),
                     " has a passphrase, and dtrain never asks for one; add it to ssh-agent: "
                     "ssh-add ",
                     attempt.locked.front()));
  }
  const int offered = ssh_userauth_list(session, nullptr);
  // The ticket may be where only Kerberos' libraries look: in the kernel's keyring, or a daemon's.
  if (settings.kerberos_allowed && (offered & SSH_AUTH_METHOD_GSSAPI_MIC) != 0) {
    return absl::UnimplementedError("GSSAPIAuthentication");
  }
  absl::StrAppend(&message, "no key was accepted (tried ",
                  attempt.tried.empty() ? "none" : absl::StrJoin(attempt.tried, ", "),
                  "; the server offers ", MethodNames(offered),
                  "); check that `ssh -o BatchMode=yes` logs in");
  return absl::PermissionDeniedError(message);
}

}  // namespace dtrain::transport
