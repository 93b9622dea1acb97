// SPDX-License-Identifier: Apache-2.0
#include "launcher/transport/ssh_session.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"
#include "launcher/transport/bootstrap.h"
#include "launcher/transport/libssh.h"
#include "launcher/transport/passing.h"

namespace dtrain::transport {
namespace {

// sshd's MaxStartups drops connections at random when many come at once; each wait is between
// half of this and all of it, and the next one twice as long.
constexpr int kRetries = 3;
constexpr std::chrono::milliseconds kFirstWait(400);
// Encrypting costs less than compressing, and logs over a fast network gain nothing.
constexpr char kNoCompression[] = "no";

Duration Jittered(Duration wait) {
  thread_local std::minstd_rand random{std::random_device{}()};
  return wait / 2 + wait / 2 * (random() % 1024) / 1024;
}

// A list of names the configuration allows. libssh drops those it does not know; one that leaves
// nothing is OpenSSH's.
absl::Status SetList(ssh_session session, ssh_options_e option, absl::string_view keyword,
                     const std::string& names) {
  if (names.empty() || ssh_options_set(session, option, names.c_str()) == SSH_OK) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrCat(keyword, " ", Escape(names)));
}

std::vector<std::string> Expand(const std::vector<std::string>& files, const TokenValues& tokens) {
  std::vector<std::string> out;
  for (const std::string& file : files) {
    auto expanded = ExpandTokens(file, tokens);
    out.push_back(expanded.ok() ? *expanded : file);
  }
  return out;
}

// libssh asks for the kinds of host key that this file has: the first that knows the host.
std::string FileThatKnows(ssh_session session, const std::vector<std::string>& files) {
  for (const std::string& file : files) {
    if (access(file.c_str(), R_OK) != 0) continue;
    ssh_options_set(session, SSH_OPTIONS_KNOWNHOSTS, file.c_str());
    if (ssh_session_has_known_hosts_entry(session) == SSH_KNOWN_HOSTS_OK) return file;
  }
  return "/dev/null";
}

}  // namespace

// Not ssh_disconnect: it forgets a socket that it was given, without closing it, and what it says
// to the server stays in libssh's buffer.
SshSession::~SshSession() { ssh_free(session_); }

std::string SshSession::Error() const { return Escape(ssh_get_error(session_), 300); }

std::string SshSession::Loss() const {
  return jump_.empty() ? Error()
                       : absl::StrCat("it is reached through ", Escape(jump_),
                                      " (ProxyJump): check that host first");
}

absl::Status SshSession::Configure(const SshSettings& settings, Duration timeout) {
  jump_ = settings.proxy_jump;
  auto set = [&](ssh_options_e option, const void* value) {
    DTRAIN_CHECK(ssh_options_set(session_, option, value) == SSH_OK);
  };
  bool alias = !settings.host_key_alias.empty();
  // The name is for known_hosts alone: the connection is made already.
  const std::string& name = alias ? settings.host_key_alias : settings.host_name;
  if (ssh_options_set(session_, SSH_OPTIONS_HOST, name.c_str()) != SSH_OK ||
      ssh_options_set(session_, SSH_OPTIONS_USER, settings.user.c_str()) != SSH_OK) {
    return absl::InvalidArgumentError(
        absl::StrCat("libssh rejects the host or user name: ", Error()));
  }
  unsigned int port = alias ? 22 : settings.port;
  bool no = false;
  long seconds = std::max<long>(1, std::chrono::ceil<std::chrono::seconds>(timeout).count());
  set(SSH_OPTIONS_PORT, &port);
  set(SSH_OPTIONS_PROCESS_CONFIG, &no);
  set(SSH_OPTIONS_TIMEOUT, &seconds);
  set(SSH_OPTIONS_COMPRESSION, kNoCompression);
  if (settings.identity_agent != "none" && settings.identity_agent != "SSH_AUTH_SOCK" &&
      !settings.identity_agent.empty()) {
    set(SSH_OPTIONS_IDENTITY_AGENT, settings.identity_agent.c_str());
  }
  int rsa = settings.required_rsa_size;
  if (rsa > 0 && ssh_options_set(session_, SSH_OPTIONS_RSA_MIN_SIZE, &rsa) != SSH_OK) {
    return absl::UnimplementedError("RequiredRSASize");
  }
  std::string ciphers = FastCiphersFirst(settings.ciphers);
  absl::Status status;
  status.Update(SetList(session_, SSH_OPTIONS_CIPHERS_C_S, "Ciphers", ciphers));
  status.Update(SetList(session_, SSH_OPTIONS_CIPHERS_S_C, "Ciphers", ciphers));
  status.Update(SetList(session_, SSH_OPTIONS_HMAC_C_S, "MACs", settings.macs));
  status.Update(SetList(session_, SSH_OPTIONS_HMAC_S_C, "MACs", settings.macs));
  status.Update(
      SetList(session_, SSH_OPTIONS_KEY_EXCHANGE, "KexAlgorithms", settings.key_exchange));
  status.Update(
      SetList(session_, SSH_OPTIONS_HOSTKEYS, "HostKeyAlgorithms", settings.host_key_algorithms));
  status.Update(SetList(session_, SSH_OPTIONS_PUBLICKEY_ACCEPTED_TYPES, "PubkeyAcceptedAlgorithms",
                        settings.public_key_algorithms));
  return status;
}

absl::Status SshSession::Handshake(const SshSettings& settings, bool* dropped) {
  if (ssh_connect(session_) == SSH_OK) return absl::OkStatus();
  std::string cause = Error();
  if (proxy_ != nullptr) {
    proxy_->ReadError();
    std::string said = LastLines(proxy_->error_text());
    if (!said.empty()) {
      return PassingError(
          absl::UnavailableError(
              absl::StrCat("connect through the ssh configuration's ",
                           settings.proxy_jump.empty() ? "ProxyCommand: " : "ProxyJump: ", said)),
          WhatPassesIn(proxy_->error_text()));
    }
  }
  const bool timed_out = absl::StrContains(cause, "Timeout");
  *dropped = ssh_get_serverbanner(session_) == nullptr && !timed_out;
  // What sshd has refused to agree on it will refuse again.
  const absl::string_view passes = *dropped    ? "sshd closes new connections"
                                   : timed_out ? "no answer from sshd"
                                   : absl::StrContains(cause, "Socket error") ? "connection broken"
                                                                              : "";
  return PassingError(
      absl::UnavailableError(absl::StrCat(
          "ssh handshake with ", Escape(settings.host_name), " port ", settings.port, ": ",
          *dropped ? "the server closed the connection before it answered ("
                     "too many connections at once, see MaxStartups in its sshd_config; "
                     "or its TCP wrappers): "
                   : "",
          cause)),
      passes);
}

absl::StatusOr<std::unique_ptr<SshSession>> SshSession::Try(Request& request,
                                                            const SshSettings& settings,
                                                            bool* dropped) {
  TimePoint deadline = Clock::now() + request.connect_timeout;
  auto dialed =
      Dial(settings, request.target, request.config_file, *request.names, deadline, request.cancel);
  if (!dialed.ok()) return dialed.status();
  auto session = std::unique_ptr<SshSession>(new SshSession());
  session->proxy_ = std::move(dialed->proxy);
  absl::Status configured = session->Configure(settings, deadline - Clock::now());
  if (!configured.ok()) return configured;
  TokenValues tokens = TokensFor(settings, request.target);
  std::vector<std::string> user_files = Expand(settings.user_known_hosts, tokens);
  std::vector<std::string> files = user_files;
  files.insert(files.end(), settings.global_known_hosts.begin(), settings.global_known_hosts.end());
  ssh_options_set(session->get(), SSH_OPTIONS_GLOBAL_KNOWNHOSTS, "/dev/null");
  std::string file = FileThatKnows(session->get(), files);
  ssh_options_set(session->get(), SSH_OPTIONS_KNOWNHOSTS, file.c_str());

  // From here on another thread can end what blocks in libssh, by shutting the socket down.
  int copy = fcntl(dialed->socket.get(), F_DUPFD_CLOEXEC, 3);
  if (copy < 0) return PosixError(errno, "duplicate a descriptor");
  os::UniqueFd old(request.socket->exchange(copy));
  socket_t fd = dialed->socket.Release();  // libssh closes it
  DTRAIN_CHECK(ssh_options_set(session->get(), SSH_OPTIONS_FD, &fd) == SSH_OK);
  absl::Status status = Pause(Duration::zero(), request.cancel);
  if (status.ok()) status = session->Handshake(settings, dropped);
  if (!status.ok()) return status;
  request.on_authenticating();
  status = CheckHostKey(session->get(), settings, user_files);
  if (status.ok()) status = Authenticate(session->get(), settings, tokens);
  if (!status.ok()) return status;
  return session;
}

absl::StatusOr<std::unique_ptr<SshSession>> SshSession::Open(Request& request) {
  if (absl::Status loaded = LoadLibssh(); !loaded.ok()) return loaded;
  auto settings = ReadSshSettings(request.target, request.config_file, request.cancel);
  if (!settings.ok()) return settings.status();
  settings->jump_silence = request.silence;
  const std::string beyond = WhatNeedsOpenSsh(*settings, TokensFor(*settings, request.target));
  if (!beyond.empty()) return absl::UnimplementedError(beyond);
  Duration wait = kFirstWait;
  for (int retry = 0;; ++retry) {
    bool dropped = false;
    auto session = Try(request, *settings, &dropped);
    if (session.ok() || !dropped || retry == kRetries) return session;
    absl::Status paused = Pause(Jittered(wait), request.cancel);
    if (!paused.ok()) return paused;
    wait *= 2;
  }
}

}  // namespace dtrain::transport
