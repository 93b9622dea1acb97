// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "spawner/limits.h"

namespace dtrain::spawner {

// An asker's answer, as it is written to the pipe.
struct Account {
  static constexpr size_t kMostGroups = 4096, kMostAllowed = 16;
  int32_t error = 0;  // errno; the rest is of no use
  uid_t uid = 0;
  gid_t gid = 0;
  uint32_t group_count = 0, allowed_count = 0;
  gid_t groups[kMostGroups] = {};
  gid_t allowed[kMostAllowed] = {};  // of Policy::allow_groups
  char name[64] = {}, home[512] = {}, shell[256] = {};
  char refused[256] = {};  // by PAM; empty: it was not, or was not asked
};

// spawner.conf: `key = value` lines.
struct Policy {
  uid_t min_uid = 1000;
  std::vector<std::string> allow_groups;  // empty: all
  std::vector<std::string> deny_users;
  bool allow_root = false;  // to a root that is connected
  bool trust_agent_tls = true;
  bool strict_map = false;  // by the agent's word, only accounts that the file of accounts names
  bool pam = true;          // its account phase
  Limits limits;
};

// Returns what is wrong, with the line's number.
std::string ParsePolicy(std::string_view text, Policy* policy);

// What the decision depends on besides.
struct Asked {
  uid_t agent = 0;
  uid_t peer = UINT32_MAX;  // who is connected
  std::string account;      // without a peer: who it is by the agent's word
  bool nologin = false;     // /etc/nologin or /run/nologin is there
  std::string shells;       // /etc/shells
  std::string accounts{};   // /etc/dtrain/accounts, for strict_map: lines NAME = ACCOUNT
};

// Returns why this account may not start jobs.
std::string Decide(const Policy& policy, const Account& account, const Asked& asked);

}  // namespace dtrain::spawner
