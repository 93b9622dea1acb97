// SPDX-License-Identifier: Apache-2.0
#include "agent/accounts.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

namespace dtrain::agent {
namespace {

// A directory service across a network answers in milliseconds, or is asked anew by its client.
constexpr Duration kPatience = std::chrono::seconds(10);

}  // namespace

void Accounts::Find(uid_t uid, Done done) {
  Ask([uid] { return os::FindAccount(uid); }, std::move(done));
}

void Accounts::Find(const std::string& name, Done done) {
  Ask([name] { return os::FindAccount(name); }, std::move(done));
}

void Accounts::Ask(std::function<absl::StatusOr<os::Account>()> look, Done done) {
  const uint64_t number = asked_++;
  Question& question = questions_[number];
  question.done = std::move(done);
  question.patience = std::make_unique<loop::Timer>(loop_);
  question.patience->After(kPatience, [this, number] {
    Answer(number, absl::DeadlineExceededError(
                       "this node's databases of accounts (passwd in /etc/nsswitch.conf) have not "
                       "answered within 10 s"));
  });
  const absl::Status queued = pool_.TryRun([this, number, look = std::move(look)] {
    loop_.Post([this, number, found = look()]() mutable { Answer(number, std::move(found)); });
  });
  if (queued.ok()) return;
  loop_.Post([this, number, queued] {
    Answer(number,
           absl::ResourceExhaustedError(absl::StrCat("look up the account: ", queued.message())));
  });
}

// The first of two: the answer, or the end of patience.
void Accounts::Answer(uint64_t number, absl::StatusOr<os::Account> found) {
  auto question = questions_.extract(number);
  if (found.ok()) known_[found->uid] = *found;
  if (!question.empty()) question.mapped().done(std::move(found));
}

absl::StatusOr<os::Account> Accounts::Known(uid_t uid) const {
  auto found = known_.find(uid);
  if (found != known_.end()) return found->second;
  return absl::NotFoundError(absl::StrCat("no account of user id ", uid, " was looked up"));
}

}  // namespace dtrain::agent
