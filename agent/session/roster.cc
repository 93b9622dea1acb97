// SPDX-License-Identifier: Apache-2.0
#include "agent/session/roster.h"

#include <optional>

#include "common/log/log.h"
#include "common/os/crash.h"

namespace dtrain::session {

auth::Job JobOf(const Session& session) {
  return {session.hello().job_id(), session.owner().name, session.owner().uid};
}

Session* Roster::Find(const std::string& job_id, uint32_t attempt) const {
  for (const auto& session : sessions_) {
    if (session != nullptr && session->hello().job_id() == job_id &&
        session->hello().attempt() == attempt) {
      return session.get();
    }
  }
  return nullptr;
}

absl::Status Roster::Check(const auth::Identity& peer, absl::string_view method,
                           const Session* session, const v1::Hello* hello) const {
  std::optional<auth::Job> job;
  if (session != nullptr) job = JobOf(*session);
  os::NoteRequest(method, job ? job->id : hello != nullptr ? hello->job_id() : "", peer.name);
  absl::Status may = auth::Authorise(peer, method, job ? &*job : nullptr);
  // An agent on a byte stream has its one launcher, and answers to nobody else.
  if (resident_ && (hello != nullptr || !may.ok())) {
    if (!job && hello != nullptr) job = {hello->job_id(), peer.name, 0};
    log::Info(auth::AuditLine(peer, method, job ? &*job : nullptr, may));
  }
  return may;
}

absl::StatusOr<Session*> Roster::FindFor(const auth::Identity& peer, absl::string_view method,
                                         const std::string& job_id, uint32_t attempt) const {
  Session* session = Find(job_id, attempt);
  if (absl::Status may = Check(peer, method, session, nullptr); !may.ok()) return may;
  if (session == nullptr) return absl::NotFoundError("this node has no such job");
  return session;
}

}  // namespace dtrain::session
