// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace dtrain::os {

// A user of this machine, as the system's databases know it.
struct Account {
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;  // all, `gid` included
  std::string name;
  std::string home;
  std::string shell;
};

// NOT_FOUND when there is none. May ask a directory service.
absl::StatusOr<Account> FindAccount(uid_t uid);
absl::StatusOr<Account> FindAccount(const std::string& name);

// What a login of that user sets: HOME, USER, LOGNAME, SHELL, PATH, and the language of ours.
std::vector<std::string> LoginEnvironment(const Account& account);

}  // namespace dtrain::os
