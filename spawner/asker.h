// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "spawner/children.h"
#include "spawner/policy.h"

namespace dtrain::spawner {

// A child that looks up one account and asks PAM about it, which may take its time or hang, as both
// may ask a directory elsewhere. Its answer comes by the pipe.
class Asker {
 public:
  // By `uid` or, when that is UINT32_MAX, by `name`. False: errno says why.
  bool Start(uid_t uid, const std::string& name, const Policy& policy);
  int pipe() const { return pipe_.get(); }
  // Takes what is there. Nothing: call again.
  std::optional<Account> Read();
  Fd TakePidfd() { return std::move(pidfd_); }

 private:
  Fd pidfd_, pipe_;
  std::string answer_;
};

}  // namespace dtrain::spawner
