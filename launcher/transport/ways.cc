// SPDX-License-Identifier: Apache-2.0
#include "launcher/transport/ways.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log/log.h"
#include "launcher/transport/command_transport.h"
#include "launcher/transport/libssh.h"
#include "launcher/transport/local_transport.h"
#include "launcher/transport/ssh_transport.h"
#include "launcher/transport/tcp_transport.h"
#include "launcher/transport/words.h"

namespace dtrain::transport {
namespace {

// Without a user or port of its own such an entry needs no ssh to itself, as with mpirun.
bool IsThisMachine(const hosts::HostEntry& entry) {
  if (!entry.user.empty() || entry.port != 0) return false;
  if (entry.host == "localhost" || entry.host == "127.0.0.1" || entry.host == "::1") return true;
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 && entry.host == name;
}

}  // namespace

Ways::Ways(loop::Loop& loop, WayOptions options, AgentBinary& agent)
    : loop_(loop), options_(std::move(options)), agent_(agent) {}

absl::Status Ways::Prepare(const hosts::HostList& hosts, bool local) {
  all_local_ = local;
  if (local) return absl::OkStatus();
  if (!options_.rsh.empty()) {
    auto made = CommandTransport::Make(loop_, options_.rsh, agent_);
    if (!made.ok()) return made.status();
    command_ = *std::move(made);
  }
  const hosts::HostEntry* first = nullptr;
  std::vector<Target> by_tcp;
  for (const hosts::HostEntry& entry : hosts.entries) {
    if (!IsTcp(entry)) continue;
    if (first == nullptr) first = &entry;
    // Who it is for may be refused.
    if (entry.user.empty()) by_tcp.push_back({entry.host, "", entry.port});
  }
  return first == nullptr ? absl::OkStatus() : PrepareTcp(*first, by_tcp);
}

absl::Status Ways::PrepareTcp(const hosts::HostEntry& first, const std::vector<Target>& hosts) {
  const std::string who = first.way == hosts::Way::kTcp
                              ? absl::StrCat("agent=tcp of host ", first.host)
                              : "--agent tcp";
  const auto failed = [&](const absl::Status& why) {
    return absl::UnauthenticatedError(absl::StrCat(who, ": ", why.message()));
  };
  auto tcp = UserTcpOptions(options_.tls_directory, options_.agent_port);
  if (!tcp.ok()) return failed(tcp.status());
  tcp->connect_timeout = options_.connect_timeout;
  auto made = TcpTransport::Make(loop_, *tcp, hosts);
  if (!made.ok()) return failed(made.status());
  tcp_ = *std::move(made);
  return absl::OkStatus();
}

bool Ways::IsTcp(const hosts::HostEntry& entry) const {
  return entry.way == hosts::Way::kTcp ||
         (entry.way == hosts::Way::kUnsaid && options_.tcp && options_.rsh.empty());
}

bool Ways::IsOwnChild(const hosts::HostEntry& entry) const {
  if (all_local_) return true;
  if (IsTcp(entry) || (command_ != nullptr && entry.way == hosts::Way::kUnsaid)) return false;
  return IsThisMachine(entry);
}

SshOptions Ways::Ssh() const {
  return {options_.ssh_config, options_.ssh_port, options_.connect_timeout, options_.silence,
          options_.on_detail};
}

Transport& Ways::For(const hosts::HostEntry& entry) {
  if (!all_local_ && IsTcp(entry)) return *tcp_;
  if (command_ != nullptr && entry.way == hosts::Way::kUnsaid) return *command_;
  if (IsOwnChild(entry)) {
    if (local_ == nullptr) local_ = std::make_unique<LocalTransport>(loop_, agent_.path());
    return *local_;
  }
  if (ssh_ == nullptr && absl::IsNotFound(LoadLibssh())) {
    log::Warn(absl::StrCat(
        LoadLibssh().message(),
        "; using OpenSSH's ssh instead, as with --rsh 'ssh {host}'. Install libssh "
        "(libssh-4 in Debian and Ubuntu) to get what docs/transports.md describes of ssh"));
    ssh_ = MakeOpenSsh(loop_, Ssh(), agent_);
  }
  if (ssh_ == nullptr) ssh_ = std::make_unique<SshTransport>(loop_, Ssh(), agent_);
  return *ssh_;
}

}  // namespace dtrain::transport
