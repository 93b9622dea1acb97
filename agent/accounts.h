// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "common/loop/loop.h"
#include "common/loop/threads.h"
#include "common/os/account.h"

namespace dtrain::agent {

// Asks the node's databases of accounts on threads of their own: behind them may be a directory
// service that hangs, and jobs that run are to hear from their agent meanwhile. Destroying it waits
// for calls that are stuck there: the process may have to exit without. Loop thread.
class Accounts {
 public:
  // DEADLINE_EXCEEDED: the databases have not answered. On the loop, never from inside the call.
  using Done = absl::AnyInvocable<void(absl::StatusOr<os::Account>)>;

  explicit Accounts(loop::Loop& loop) : loop_(loop) {}

  void Find(uid_t uid, Done done);
  void Find(const std::string& name, Done done);
  // Who is waiting for an answer.
  size_t waiting() const { return questions_.size(); }
  // As it was found last. NOT_FOUND: it never was.
  absl::StatusOr<os::Account> Known(uid_t uid) const;

 private:
  struct Question {
    std::unique_ptr<loop::Timer> patience;
    Done done;
  };
  void Ask(std::function<absl::StatusOr<os::Account>()> look, Done done);
  void Answer(uint64_t number, absl::StatusOr<os::Account> found);

  loop::Loop& loop_;
  uint64_t asked_ = 0;
  std::map<uint64_t, Question> questions_;  // by number
  std::map<uid_t, os::Account> known_;
  loop::BlockingPool pool_{4};  // one that hangs does not stop the others' answers
};

}  // namespace dtrain::agent
