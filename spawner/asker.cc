// SPDX-License-Identifier: Apache-2.0
#include "spawner/asker.h"

#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "spawner/pam.h"
#include "spawner/protocol.h"

namespace dtrain::spawner {
namespace {

void LookUp(uid_t uid, const std::string& name, const Policy& policy, Account* out) {
  errno = 0;
  const passwd* entry = uid != UINT32_MAX ? getpwuid(uid) : getpwnam(name.c_str());
  if (entry == nullptr) {
    out->error = errno == 0 ? ENOENT : errno;
    return;
  }
  out->uid = entry->pw_uid;
  out->gid = entry->pw_gid;
  if (!Put(entry->pw_name, out->name) || !Put(entry->pw_dir, out->home) ||
      !Put(entry->pw_shell, out->shell)) {
    out->error = ENAMETOOLONG;
    return;
  }
  int count = Account::kMostGroups;
  if (getgrouplist(out->name, out->gid, out->groups, &count) < 0) out->error = E2BIG;
  out->group_count = static_cast<uint32_t>(count);
  for (const std::string& group : policy.allow_groups) {
    const struct group* found = getgrnam(group.c_str());
    if (found != nullptr) out->allowed[out->allowed_count++] = found->gr_gid;
  }
  if (policy.pam) (void)Put(AskPam(out->name), out->refused);  // cut off at worst
}

}  // namespace

bool Asker::Start(uid_t uid, const std::string& name, const Policy& policy) {
  auto [reader, writer] = Pipe(O_NONBLOCK);
  if (!reader) return false;
  const int made = Fork(-1, &pidfd_);
  if (made == 0) {
    // If it hangs, nothing of the spawner's is held by that.
    if (dup2(writer.get(), 3) != 3 || syscall(SYS_close_range, 4, ~0U, 0) != 0) _exit(1);
    // Smaller than the pipe.
    static Account account;
    LookUp(uid, name, policy, &account);
    _exit(write(3, &account, sizeof(account)) == sizeof(account) ? 0 : 1);
  }
  pipe_ = std::move(reader);
  return made > 0;
}

std::optional<Account> Asker::Read() {
  char buffer[8192];
  ssize_t n;
  while ((n = read(pipe_.get(), buffer, sizeof(buffer))) > 0 && answer_.size() <= sizeof(Account)) {
    answer_.append(buffer, static_cast<size_t>(n));
  }
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
  Account account;
  account.error = EIO;  // it has died
  if (answer_.size() != sizeof(account)) return account;
  std::memcpy(&account, answer_.data(), sizeof(account));
  const bool sound = account.group_count <= Account::kMostGroups &&
                     account.allowed_count <= Account::kMostAllowed &&
                     memchr(account.name, 0, sizeof(account.name)) &&
                     memchr(account.home, 0, sizeof(account.home)) &&
                     memchr(account.shell, 0, sizeof(account.shell)) &&
                     memchr(account.refused, 0, sizeof(account.refused)) &&
                     IsPlainAccount(account.name);
  if (!sound && account.error == 0) account.error = EBADMSG;
  return account;
}

}  // namespace dtrain::spawner
