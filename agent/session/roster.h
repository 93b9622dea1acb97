// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <list>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "agent/auth/authorise.h"
#include "agent/auth/identity.h"
#include "agent/auth/refusal_log.h"
#include "agent/session/session.h"
#include "common/loop/loop.h"

namespace dtrain::session {

auth::Job JobOf(const Session& session);
// It holds nothing, and has no rank: Joining sees to that.
bool IsSurvey(const Session& session);

// A job as a caller names it. Jobs of several users may have that name.
struct AskedFor {
  absl::string_view job_id;
  std::optional<uint32_t> attempt;  // nullopt: the last
  absl::string_view owner;          // an account; empty: whose auth::Choose says
};

// The sessions of one agent, and who may do what with them. Loop thread.
class Roster {
 public:
  using List = std::list<std::unique_ptr<Session>>;

  Roster(loop::Loop& loop, bool resident) : loop_(loop), resident_(resident) {}

  // Those in their constructors are null.
  const List& all() const { return sessions_; }
  List::iterator AddPlace() { return sessions_.insert(sessions_.end(), nullptr); }
  void Remove(List::iterator place) { sessions_.erase(place); }
  // The session of this user's job, or null. Other users may have jobs with the same id.
  Session* Find(uid_t uid, absl::string_view job_id, uint32_t attempt) const;

  // Whether `peer` may call the method, of `session` (null: of none). Writes the audit of a
  // refusal.
  absl::Status Check(const auth::Identity& peer, absl::string_view method, const Session* session,
                     const v1::Hello* hello);
  // Writes the audit of what was done for `peer`. `again`: what can be done any number of times.
  void Audit(const auth::Identity& peer, absl::string_view method, const auth::Job& job,
             bool again);
  // Writes the audit of a request that failed. `decided`: OK where it was allowed, else why
  // dtrain-spawner denied it.
  void AuditFailed(const auth::Identity& peer, absl::string_view method, const auth::Job& job,
                   const absl::Status& decided);
  // The line for the log, if it is the first of its `kind` and user within a minute.
  std::optional<std::string> Bound(absl::string_view user, absl::string_view kind,
                                   std::string line);
  // The session that `peer` asks about by `method`, if it may.
  absl::StatusOr<Session*> FindFor(const auth::Identity& peer, absl::string_view method,
                                   const AskedFor& job);

 private:
  loop::Loop& loop_;
  const bool resident_;
  auth::RefusalLog lines_;
  List sessions_;
};

}  // namespace dtrain::session
