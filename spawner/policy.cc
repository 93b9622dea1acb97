// SPDX-License-Identifier: Apache-2.0
#include "spawner/policy.h"

#include <algorithm>
#include <cstring>

#include "spawner/children.h"
#include "spawner/protocol.h"

namespace dtrain::spawner {
namespace {

std::string_view Trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\"");
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\"") + 1 - begin);
}

// The parts of `text`, trimmed, without empty ones.
std::vector<std::string> Split(std::string_view text, const char* separators) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of(separators), text.size());
    if (const std::string_view part = Trim(text.substr(0, end)); !part.empty())
      out.emplace_back(part);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

bool ParseBool(std::string_view text, bool* out) {
  *out = text == "yes" || text == "true";
  return *out || text == "no" || text == "false";
}

bool ParseNames(std::string_view text, std::vector<std::string>* out) {
  *out = Split(text, ", ");
  return !out->empty() && out->size() <= Account::kMostAllowed &&
         std::all_of(out->begin(), out->end(), IsPlainAccount);
}

bool ParseUid(std::string_view text, uid_t* out) {
  if (text.empty() || text.size() > 9 || text.find_first_not_of("0123456789") != text.npos)
    return false;
  *out = static_cast<uid_t>(std::stoul(std::string(text)));
  return *out > 0;
}

bool Set(Policy* policy, std::string_view key, std::string_view value) {
  if (key == "min-uid") return ParseUid(value, &policy->min_uid);
  if (key == "allow-groups") return ParseNames(value, &policy->allow_groups);
  if (key == "deny-users") return ParseNames(value, &policy->deny_users);
  if (key == "allow-root") return ParseBool(value, &policy->allow_root);
  if (key == "require-limits") return ParseBool(value, &policy->limits.required);
  if (key == "job-memory") return ParseSize(std::string(value), &policy->limits.job_memory);
  if (key == "trust-agent-tls") return ParseBool(value, &policy->trust_agent_tls);
  if (key == "map") return (policy->strict_map = value == "strict") || value == "names";
  policy->pam = value == "account";
  return key == "pam" && (policy->pam || value == "off");
}

bool IsMapped(std::string_view accounts, const std::string& account) {
  const std::vector<std::string> lines = Split(accounts, "\n");
  return std::any_of(lines.begin(), lines.end(), [&](std::string_view line) {
    line = line.substr(0, line.find('#'));
    const size_t equals = line.find('=');
    return equals != line.npos && Trim(line.substr(equals + 1)) == account;
  });
}

}  // namespace

std::string ParsePolicy(std::string_view text, Policy* policy) {
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = Trim(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line[0] == '#') continue;
    const size_t equals = line.find('=');
    if (equals == line.npos ||
        !Set(policy, Trim(line.substr(0, equals)), Trim(line.substr(equals + 1)))) {
      return Format("line %d: unknown key or wrong value: %s", number, Escape(line).c_str());
    }
  }
  return "";
}

std::string Decide(const Policy& policy, const Account& account, const Asked& asked) {
  const std::string name = Escape(account.name);
  if (asked.peer != UINT32_MAX ? account.uid != asked.peer : account.name != asked.account) {
    return Format("the account that was found is %s, uid %u", name.c_str(), account.uid);
  }
  if (account.uid == asked.agent) return "the agent's own user runs no jobs";
  const auto& denied = policy.deny_users;
  if (std::find(denied.begin(), denied.end(), account.name) != denied.end()) {
    return Format("%s is one of deny-users", name.c_str());
  }
  if (account.uid == 0) {
    return policy.allow_root && asked.peer == 0
               ? ""
               : "root needs allow-root = yes and a connection of root's";
  }
  if (account.uid < policy.min_uid) {
    return Format("%s has uid %u, below min-uid %u: lower min-uid to admit system users",
                  name.c_str(), account.uid, policy.min_uid);
  }
  if (policy.strict_map && asked.peer == UINT32_MAX && !IsMapped(asked.accounts, account.name)) {
    return Format("/etc/dtrain/accounts does not name %s, and map = strict: add a line NAME = %s",
                  name.c_str(), name.c_str());
  }
  if (asked.nologin) return "logins are disabled by /etc/nologin or /run/nologin";
  const auto& shells = asked.shells;
  const std::vector<std::string> allowed_shells = Split(shells, "\n");
  if (account.shell[0] != '/' || std::find(allowed_shells.begin(), allowed_shells.end(),
                                           account.shell) == allowed_shells.end()) {
    return Format("the shell of %s, %s, is not in /etc/shells: change it with chsh", name.c_str(),
                  Escape(account.shell).c_str());
  }
  if (account.refused[0] != '\0') {
    return Format("PAM (service dtrain) refuses %s: %s: see /etc/pam.d/dtrain", name.c_str(),
                  Escape(account.refused).c_str());
  }
  if (policy.allow_groups.empty()) return "";
  const gid_t* const end = account.groups + account.group_count;
  const bool in =
      std::any_of(account.allowed, account.allowed + account.allowed_count,
                  [&](gid_t gid) { return std::find(account.groups, end, gid) != end; });
  return in ? "" : Format("%s is in none of allow-groups: add it to one of them", name.c_str());
}

}  // namespace dtrain::spawner
