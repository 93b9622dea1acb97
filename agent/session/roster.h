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
#include "agent/session/session.h"

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

  explicit Roster(bool resident) : resident_(resident) {}

  // Those in their constructors are null.
  const List& all() const { return sessions_; }
  List::iterator AddPlace() { return sessions_.insert(sessions_.end(), nullptr); }
  void Remove(List::iterator place) { sessions_.erase(place); }
  // The session of this user's job, or null. Other users may have jobs with the same id.
  Session* Find(uid_t uid, absl::string_view job_id, uint32_t attempt) const;

  // Whether `peer` may call the method, of `session` (null: of none). Writes the audit.
  absl::Status Check(const auth::Identity& peer, absl::string_view method, const Session* session,
                     const v1::Hello* hello) const;
  // The session that `peer` asks about by `method`, if it may.
  absl::StatusOr<Session*> FindFor(const auth::Identity& peer, absl::string_view method,
                                   const AskedFor& job) const;

 private:
  const bool resident_;
  List sessions_;
};

}  // namespace dtrain::session
