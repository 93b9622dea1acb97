// SPDX-License-Identifier: Apache-2.0
#include "agent/session/adoption.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/session/join_phase.h"
#include "common/base/clock.h"
#include "common/log/log.h"
#include "common/os/process_tree.h"

namespace dtrain::session {
namespace {

// A shepherd answers within a millisecond; one that takes this long is stopped or hangs.
constexpr Duration kAccountTimeout = std::chrono::seconds(3);

}  // namespace

struct Adoption::Foundling {
  Foundling(loop::Loop& loop, JobDirectory where) : directory(std::move(where)), timer(loop) {}
  JobDirectory directory;
  spawn::JobKey key;
  std::optional<v1::JobRecord> record;
  spawn::Owner owner;
  std::unique_ptr<spawn::Processes> processes;  // until they are the shepherd's
  std::unique_ptr<ShepherdChannel> shepherd;
  loop::Timer timer;
  bool adopted = false;
  std::string why;  // it was given up
};

Adoption::Adoption(loop::Loop& loop, spawn::Spawner& spawner, Handlers handlers)
    : loop_(loop), spawner_(spawner), handlers_(std::move(handlers)) {}

Adoption::~Adoption() { *alive_ = false; }

absl::Status Adoption::Begin(std::vector<JobDirectory> directories) {
  std::vector<std::pair<JobDirectory, std::optional<v1::JobRecord>>> found;
  for (JobDirectory& directory : directories) {
    auto record = directory.Read();
    const absl::Status& read = record.status();
    if (!read.ok() && !absl::IsNotFound(read) && !absl::IsDataLoss(read)) return read;
    found.emplace_back(std::move(directory), record.ok()
                                                 ? std::optional<v1::JobRecord>(*std::move(record))
                                                 : std::nullopt);
  }
  for (auto& [directory, record] : found) Look(std::move(directory), std::move(record));
  if (foundlings_.empty()) {
    loop_.Post([this, alive = alive_] {
      if (*alive) handlers_.on_decided();
    });
  }
  return absl::OkStatus();
}

void Adoption::Look(JobDirectory directory, std::optional<v1::JobRecord> record) {
  if (record && record->boot_id() != os::BootId()) {
    log::Warn(absl::StrCat("job ", record->job_id(), ": the machine was rebooted since"));
    directory.Remove();  // nothing else of it is left
    return;
  }
  foundlings_.push_back(std::make_unique<Foundling>(loop_, std::move(directory)));
  Foundling& foundling = *foundlings_.back();
  const auto uid = record ? std::optional<uid_t>(record->uid()) : foundling.directory.uid();
  foundling.record = std::move(record);
  spawn::Spawner::Found found =
      spawner_.Adopt({foundling.directory.job_id(), foundling.directory.attempt(), uid,
                      foundling.record, foundling.directory.Connect()});
  foundling.key = {found.owner.uid, foundling.directory.job_id(), foundling.directory.attempt()};
  foundling.owner = std::move(found.owner);
  foundling.processes = std::move(found.processes);
  if (!found.why_not.empty()) return GiveUp(foundling, found.why_not);
  foundling.shepherd = std::make_unique<ShepherdChannel>(loop_, std::move(foundling.processes));
  ShepherdChannel::Handlers handlers;
  handlers.on_event = [this, &foundling](v1::ShepherdEvent event) {
    if (event.has_account()) OnAccount(foundling, std::move(*event.mutable_account()));
  };
  handlers.on_gone = [this, &foundling](const std::string& why) { GiveUp(foundling, why); };
  foundling.shepherd->Listen(std::move(handlers));
  foundling.timer.After(kAccountTimeout,
                        [this, &foundling] { GiveUp(foundling, "it does not answer"); });
}

void Adoption::OnAccount(Foundling& foundling, v1::Account account) {
  if (foundling.adopted || !foundling.why.empty()) return;
  const v1::JobOnNode& job = account.report().job();
  if (job.ranks_size() == 0) return GiveUp(foundling, "it has no part of the job");
  // It is its user's word: an agent before us has looked at what the launcher said.
  const v1::Hello& hello = account.kept().hello();
  if (hello.job_id() != foundling.key.job_id || hello.attempt() != foundling.key.attempt ||
      !IsSound(hello) || hello.elastic().survey()) {
    return GiveUp(foundling, "it says that its launcher has asked for another job");
  }
  foundling.timer.Cancel();
  foundling.adopted = true;
  log::Info(absl::StrCat("job ", foundling.key.job_id, ": taken over from the previous agent, ",
                         job.ranks_size(), " workers"));
  handlers_.on_job({std::move(foundling.directory), foundling.owner, std::move(foundling.shepherd),
                    std::move(account), foundling.record.value_or(v1::JobRecord())});
  Decided(foundling);
}

// First the workers, then the word about it.
void Adoption::GiveUp(Foundling& foundling, const std::string& why) {
  if (foundling.adopted || !foundling.why.empty()) return;
  foundling.why = why;
  foundling.timer.Cancel();
  spawn::Processes& processes =
      foundling.shepherd != nullptr ? foundling.shepherd->processes() : *foundling.processes;
  processes.EndAll([this, &foundling] { OnEnded(foundling); });
}

void Adoption::OnEnded(Foundling& foundling) {
  const spawn::Processes& processes =
      foundling.shepherd != nullptr ? foundling.shepherd->processes() : *foundling.processes;
  log::Error(absl::StrCat("job ", foundling.key.job_id,
                          ": its shepherd cannot be taken over: ", foundling.why));
  foundling.directory.Remove();
  handlers_.on_lost({foundling.key,
                     absl::StrCat("its agent was restarted and could not take the job over: ",
                                  foundling.why, "; the workers have been killed"),
                     foundling.record, processes.killed()});
  Decided(foundling);
}

void Adoption::Decided(Foundling& foundling) {
  // Posted: its own callbacks are on the stack.
  loop_.Post([this, alive = alive_, &foundling] {
    if (!*alive) return;
    foundlings_.remove_if([&](const auto& each) { return each.get() == &foundling; });
    if (foundlings_.empty()) handlers_.on_decided();
  });
}

}  // namespace dtrain::session
