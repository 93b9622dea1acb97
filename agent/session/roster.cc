// SPDX-License-Identifier: Apache-2.0
#include "agent/session/roster.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/log/log.h"
#include "common/os/crash.h"

namespace dtrain::session {

auth::Job JobOf(const Session& session) {
  return {session.hello().job_id(), session.owner().name, session.owner().uid};
}

bool IsSurvey(const Session& session) { return session.hello().elastic().survey(); }

Session* Roster::Find(uid_t uid, absl::string_view job_id, uint32_t attempt) const {
  for (const auto& session : sessions_) {
    if (session != nullptr && session->owner().uid == uid && session->hello().job_id() == job_id &&
        session->hello().attempt() == attempt) {
      return session.get();
    }
  }
  return nullptr;
}

absl::Status Roster::Check(const auth::Identity& peer, absl::string_view method,
                           const Session* session, const v1::Hello* hello) {
  std::optional<auth::Job> job;
  if (session != nullptr) job = JobOf(*session);
  os::NoteRequest(method, job ? job->id : hello != nullptr ? hello->job_id() : "", peer.name);
  absl::Status may = auth::Authorise(peer, method, job ? &*job : nullptr);
  // An agent on a byte stream has its one launcher, and answers to nobody else.
  if (resident_ && !may.ok()) {
    if (!job && hello != nullptr) job = {hello->job_id(), peer.name, 0};
    auto line = Bound(peer.name, method, auth::AuditLine(peer, method, job ? &*job : nullptr, may));
    if (line) log::Info(*line);
  }
  return may;
}

void Roster::Audit(const auth::Identity& peer, absl::string_view method, const auth::Job& job,
                   bool again) {
  if (!resident_) return;
  std::optional<std::string> line = auth::AuditLine(peer, method, &job, absl::OkStatus());
  if (again) line = Bound(peer.name, absl::StrCat(method, " again"), *std::move(line));
  if (line) log::Info(*line);
}

void Roster::AuditFailed(const auth::Identity& peer, absl::string_view method, const auth::Job& job,
                         const absl::Status& decided) {
  if (!resident_) return;
  // It costs the caller nothing to ask again.
  const auto line = Bound(peer.name, absl::StrCat(method, decided.ok() ? " failed" : " denied"),
                          auth::AuditLine(peer, method, &job, decided));
  if (line) log::Info(*line);
}

std::optional<std::string> Roster::Bound(absl::string_view user, absl::string_view kind,
                                         std::string line) {
  return lines_.Bound(loop_.Now(), absl::StrCat(user, " ", kind), std::move(line));
}

absl::StatusOr<Session*> Roster::FindFor(const auth::Identity& peer, absl::string_view method,
                                         const AskedFor& asked) {
  std::vector<Session*> found;  // of each user that which is asked for
  std::vector<auth::Job> jobs;  // theirs
  for (const auto& session : sessions_) {
    if (session == nullptr || IsSurvey(*session)) continue;
    if (session->hello().job_id() != asked.job_id) continue;
    if (asked.attempt && session->hello().attempt() != *asked.attempt) continue;
    if (!asked.owner.empty() && session->owner().name != asked.owner) continue;
    auto same = std::find_if(found.begin(), found.end(), [&](const Session* each) {
      return each->owner().uid == session->owner().uid;
    });
    if (same == found.end()) {
      found.push_back(session.get());
      jobs.push_back(JobOf(*session));
    } else if (session->hello().attempt() > (*same)->hello().attempt()) {
      *same = session.get();
    }
  }
  auto chosen = auth::Choose(peer, method, jobs);
  if (!chosen.ok()) return chosen.status();
  Session* const session = *chosen ? found[**chosen] : nullptr;
  if (absl::Status may = Check(peer, method, session, nullptr); !may.ok()) return may;
  if (session == nullptr) return absl::NotFoundError("this node has no such job");
  return session;
}

}  // namespace dtrain::session
