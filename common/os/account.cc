// SPDX-License-Identifier: Apache-2.0
#include "common/os/account.h"

#include <grp.h>
#include <pwd.h>

#include <cerrno>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "common/base/posix_error.h"

namespace dtrain::os {
namespace {

constexpr size_t kMostBuffer = 1 << 20;

template <typename Ask>
absl::StatusOr<Account> Find(const std::string& who, Ask ask) {
  passwd entry{};
  passwd* found = nullptr;
  std::vector<char> buffer(4096);
  int error = ask(&entry, buffer, &found);
  while (error == ERANGE && buffer.size() < kMostBuffer) {
    buffer.resize(buffer.size() * 2);
    error = ask(&entry, buffer, &found);
  }
  if (error != 0) return PosixError(error, absl::StrCat("look up user ", who));
  if (found == nullptr) {
    return absl::NotFoundError(absl::StrCat("this machine has no user ", who));
  }
  Account account{entry.pw_uid, entry.pw_gid, {}, entry.pw_name, entry.pw_dir, entry.pw_shell};
  int count = 64;
  account.groups.resize(static_cast<size_t>(count));
  while (getgrouplist(entry.pw_name, entry.pw_gid, account.groups.data(), &count) < 0) {
    account.groups.resize(static_cast<size_t>(count));
  }
  account.groups.resize(static_cast<size_t>(count));
  return account;
}

}  // namespace

absl::StatusOr<Account> FindAccount(uid_t uid) {
  return Find(absl::StrCat(uid), [&](passwd* entry, std::vector<char>& buffer, passwd** found) {
    return getpwuid_r(uid, entry, buffer.data(), buffer.size(), found);
  });
}

absl::StatusOr<Account> FindAccount(const std::string& name) {
  return Find(name, [&](passwd* entry, std::vector<char>& buffer, passwd** found) {
    return getpwnam_r(name.c_str(), entry, buffer.data(), buffer.size(), found);
  });
}

std::vector<std::string> LoginEnvironment(const Account& account) {
  std::vector<std::string> env = {
      absl::StrCat("HOME=", account.home), absl::StrCat("USER=", account.name),
      absl::StrCat("LOGNAME=", account.name), absl::StrCat("SHELL=", account.shell),
      "PATH=/usr/local/bin:/usr/bin:/bin"};
  if (account.uid == 0) {
    env.back() = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
  }
  if (const char* lang = getenv("LANG"); lang != nullptr)
    env.push_back(absl::StrCat("LANG=", lang));
  return env;
}

}  // namespace dtrain::os
