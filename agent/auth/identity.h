// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

// Who asks. Everything here is pure: what the system knows of accounts is asked for by the caller.

namespace dtrain::auth {

// Which account of this node a certificate's name stands for. Lines `name = account`, comments
// from # on; who is not named has the account of the same name.
class AccountMap {
 public:
  // The error names the line.
  static absl::StatusOr<AccountMap> Parse(absl::string_view text);
  std::string AccountFor(absl::string_view certificate_name) const;

 private:
  std::map<std::string, std::string, std::less<>> accounts_;
};

// A later one may all that an earlier one may. What a user may do depends on whose job it is.
enum class Role { kObserver, kUser, kAdmin };

absl::string_view RoleName(Role role);  // "observer", "user", "admin"

// Of the node's password database.
struct Account {
  std::string name;
  uint32_t uid = 0;
  uint32_t gid = 0;
};

struct Identity {
  Role role = Role::kObserver;
  std::string name;  // of the certificate, or the account's
  // As whom it may start workers and which jobs are its own. Without one, `no_account` says why.
  std::optional<Account> account;
  std::string no_account;
  std::string proof;  // how it was authenticated: "certificate 1A2B", "unix socket"
  std::string peer;   // where it is: "10.0.0.7", "process 4711"
};

// What TLS has verified, without TLS: the fields of tls::Certificate that count here.
struct CertificateFacts {
  std::string kind;  // "node", "user", "admin", "observer"
  std::string name;
  std::string serial;
};

// What SO_PEERCRED says.
struct UnixPeer {
  uint32_t uid = 0;
  uint32_t gid = 0;
  uint32_t pid = 0;
};

// Of the agent.
struct Policy {
  uint32_t agent_uid = 0;   // 0: it can start workers as anybody
  bool for_all = false;     // somebody else does that for it, whoever it is (dtrain-spawner)
  bool allow_root = false;  // a certificate may lead to the account with uid 0
  AccountMap accounts;
};

using FindAccount = absl::FunctionRef<std::optional<Account>(absl::string_view name)>;

// Who comes with this certificate, from `peer`. Fails for nodes, which ask for nothing. A person
// without a usable account on this node may look, not launch.
absl::StatusOr<Identity> IdentityOfCertificate(const CertificateFacts& certificate,
                                               absl::string_view peer, const Policy& policy,
                                               FindAccount find);

// Who sits at the other end of the agent's unix socket: root is admin, and so is the account that
// an unprivileged agent runs as; others are users of an agent that serves all, and refused by any
// other.
// `account_name`: of the peer's uid, empty when it has none, as in many containers; an agent
// that starts jobs as that very user needs none, and takes its number for the name. An account of
// root is given to root, with or without allow_root, as root can start anything anyway.
absl::StatusOr<Identity> IdentityOfUnixPeer(const UnixPeer& peer, absl::string_view account_name,
                                            const Policy& policy);

// "user alice (certificate 1A2B, 10.0.0.7)", escaped.
std::string Describe(const Identity& identity);

}  // namespace dtrain::auth
