// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <libssh/libssh.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/loop/loop.h"
#include "common/os/unique_fd.h"
#include "launcher/transport/ssh_config.h"
#include "launcher/transport/ssh_dial.h"
#include "launcher/transport/transport.h"

namespace dtrain::transport {

// One authenticated ssh session. libssh sessions belong to one thread at a time. Blocks.
class SshSession {
 public:
  ~SshSession();
  SshSession(const SshSession&) = delete;
  SshSession& operator=(const SshSession&) = delete;

  struct Request {
    Target target;
    std::string config_file;
    Duration connect_timeout;
    Duration silence;          // of a jump host, after which it is lost
    NameAnswers* names;        // of all sessions of this command
    int cancel;                // readable: give up
    std::atomic<int>* socket;  // gets a duplicate of the socket, see SshLink
    absl::AnyInvocable<void()> on_authenticating;
  };
  // Connects, checks the host key, authenticates; tries again when sshd drops a connection that
  // it has no room for. UNIMPLEMENTED, with what needs it: only OpenSSH's own client can.
  static absl::StatusOr<std::unique_ptr<SshSession>> Open(Request& request);

  ssh_session get() const { return session_; }
  int socket_fd() const { return ssh_get_fd(session_); }
  Proxy* proxy() const { return proxy_.get(); }
  std::string Error() const;  // libssh's last, escaped
  // Why it is no more. Of all that come through one jump host the same: whoever loses several has
  // one cause to tell.
  std::string Loss() const;

 private:
  SshSession() : session_(ssh_new()) {}
  // Sets `*dropped` when the server closed the connection before it said anything.
  static absl::StatusOr<std::unique_ptr<SshSession>> Try(Request& request,
                                                         const SshSettings& settings,
                                                         bool* dropped);
  absl::Status Configure(const SshSettings& settings, Duration timeout);
  absl::Status Handshake(const SshSettings& settings, bool* dropped);
  ssh_session session_;
  std::unique_ptr<Proxy> proxy_;
  std::string jump_;  // ProxyJump of its configuration
};

// The server's key is in one of the user's or the system's known_hosts files, or the user's
// StrictHostKeyChecking takes it. UNAUTHENTICATED with the file and what to do.
absl::Status CheckHostKey(ssh_session session, const SshSettings& settings,
                          const std::vector<std::string>& user_files);

// ssh-agent and key files that need no passphrase. PERMISSION_DENIED with what the server offers.
absl::Status Authenticate(ssh_session session, const SshSettings& settings,
                          const TokenValues& tokens);

}  // namespace dtrain::transport
