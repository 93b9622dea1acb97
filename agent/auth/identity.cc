// SPDX-License-Identifier: Apache-2.0
#include "agent/auth/identity.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/text.h"

namespace dtrain::auth {
namespace {

// What useradd takes, and dtrain-pki; directories of accounts (LDAP, AD) have longer ones with @.
bool IsName(absl::string_view text) {
  return !text.empty() && text.size() <= 256 && text[0] != '-' &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' ||
                  c == '-' || c == '@' || c == '$';
         });
}

}  // namespace

absl::StatusOr<AccountMap> AccountMap::Parse(absl::string_view text) {
  AccountMap out;
  size_t number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const std::vector<absl::string_view> sides = absl::StrSplit(line, '=');
    const absl::string_view name = absl::StripAsciiWhitespace(sides[0]);
    const absl::string_view account =
        sides.size() == 2 ? absl::StripAsciiWhitespace(sides[1]) : absl::string_view();
    if (!IsName(name) || !IsName(account)) {
      return absl::InvalidArgumentError(absl::StrCat("line ", number, ": \"", Escape(line),
                                                     "\" is not of the form NAME = ACCOUNT"));
    }
    if (!out.accounts_.emplace(name, account).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, ": ", Escape(name), " has an account already"));
    }
  }
  return out;
}

std::string AccountMap::AccountFor(absl::string_view certificate_name) const {
  const auto found = accounts_.find(certificate_name);
  return found == accounts_.end() ? std::string(certificate_name) : found->second;
}

namespace {

constexpr std::pair<Role, absl::string_view> kRoles[] = {
    {Role::kObserver, "observer"},
    {Role::kUser, "user"},
    {Role::kAdmin, "admin"},
};

std::optional<Role> RoleOf(absl::string_view kind) {
  for (const auto& [role, name] : kRoles) {
    if (name == kind) return role;
  }
  return std::nullopt;
}

bool ServesAll(const Policy& policy) { return policy.agent_uid == 0 || policy.for_all; }

// Why workers cannot be started as this account; empty: they can.
std::string WhyNot(const Account& account, const Policy& policy) {
  if (!ServesAll(policy) && account.uid != policy.agent_uid) {
    return absl::StrCat("this agent runs as user id ", policy.agent_uid,
                        " and starts workers only as that user, not as ", Escape(account.name));
  }
  if (account.uid == 0 && !policy.allow_root) {
    return absl::StrCat("the certificate maps to ", Escape(account.name),
                        " (user id 0), and this agent starts nothing as root for callers on the "
                        "network (--allow-root lets it)");
  }
  return "";
}

}  // namespace

absl::string_view RoleName(Role role) {
  for (const auto& [value, name] : kRoles) {
    if (value == role) return name;
  }
  return "";
}

absl::StatusOr<Identity> IdentityOfCertificate(const CertificateFacts& certificate,
                                               absl::string_view peer, const Policy& policy,
                                               FindAccount find) {
  const std::optional<Role> role = RoleOf(certificate.kind);
  if (!role.has_value() || certificate.name.empty()) {
    return absl::PermissionDeniedError(
        absl::StrCat("the certificate of ", Escape(certificate.kind), " ", Escape(certificate.name),
                     " (", peer, ") is not a user's: use one made with dtrain-pki user"));
  }
  Identity out;
  out.role = *role;
  out.name = certificate.name;
  out.proof = absl::StrCat("certificate ", certificate.serial);
  out.peer = std::string(peer);
  if (*role == Role::kObserver) {
    out.no_account = "observers have read-only access";
    return out;
  }
  const std::string name = policy.accounts.AccountFor(certificate.name);
  std::optional<Account> account = find(name);
  if (!account.has_value()) {
    out.no_account = absl::StrCat("this node has no account \"", Escape(name),
                                  "\": create it, or map the name to another one in the agent's "
                                  "--account-map");
    return out;
  }
  out.no_account = WhyNot(*account, policy);
  if (out.no_account.empty()) out.account = std::move(account);
  return out;
}

absl::StatusOr<Identity> IdentityOfUnixPeer(const UnixPeer& peer, absl::string_view account_name,
                                            const Policy& policy) {
  const bool own = peer.uid == policy.agent_uid;
  if (!ServesAll(policy) && !own && peer.uid != 0) {
    return absl::PermissionDeniedError(absl::StrCat("this agent is user id ", policy.agent_uid,
                                                    "'s; user id ", peer.uid, " (process ",
                                                    peer.pid, ") is refused"));
  }
  Identity out;
  out.role = own || peer.uid == 0 ? Role::kAdmin : Role::kUser;
  out.name = account_name.empty() ? absl::StrCat(peer.uid) : std::string(account_name);
  out.proof = "unix socket";
  out.peer = absl::StrCat("process ", peer.pid);
  if (!ServesAll(policy) && !own) {
    out.no_account = absl::StrCat("this agent runs as user id ", policy.agent_uid,
                                  " and starts workers only as that user, not as root");
  } else if (account_name.empty() && ServesAll(policy)) {
    out.no_account = absl::StrCat("user id ", peer.uid, " has no account on this node");
  } else {
    out.account = Account{out.name, peer.uid, peer.gid};
  }
  return out;
}

std::string Describe(const Identity& identity) {
  return absl::StrCat(RoleName(identity.role), " ", Escape(identity.name), " (",
                      Escape(identity.proof), ", ", Escape(identity.peer), ")");
}

}  // namespace dtrain::auth
