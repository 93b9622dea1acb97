// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/spawn/job_id.h"
#include "common/os/unique_fd.h"
#include "dtrain/v1/state.pb.h"

namespace dtrain::session {

// What lies on disk about one job of a resident agent: a folder <state>/jobs/<job>.<attempt>.<uid>
// (of older agents: without the uid) with the record of who runs it and the socket on which its
// shepherd waits for agents. It is on a file system that a reboot empties, and only its owner may
// enter it.
class JobDirectory {
 public:
  // Makes it, with a bound socket, unless its shepherd has one already. ALREADY_EXISTS: this agent
  // runs that job and attempt already.
  static absl::StatusOr<JobDirectory> Make(const std::string& state, const spawn::JobKey& job,
                                           bool with_socket = true);
  // The same for an agent to come, which does not find it before Show: until then its shepherd has
  // another.
  static absl::StatusOr<JobDirectory> MakeHidden(const std::string& state,
                                                 const spawn::JobKey& job);
  absl::Status Show();
  // Those of MakeHidden whose shepherds are gone.
  static void RemoveHidden(const std::string& state) { RemoveDead(ListHidden(state)); }
  // Of these, those whose shepherds are gone. As FindShepherds.
  static void RemoveDead(const std::vector<JobDirectory>& directories);
  // Those that are there: of jobs that run, or that a reboot or a crash has left.
  static std::vector<JobDirectory> List(const std::string& state);

  const std::string& path() const { return path_; }
  // Of the job, by the folder's name. `key` takes us for the owner where the name has none.
  std::string job_id() const;
  uint32_t attempt() const;
  std::optional<uid_t> uid() const;
  spawn::JobKey key() const { return {uid().value_or(geteuid()), job_id(), attempt()}; }
  // Of a new one, once, for the shepherd to listen on.
  os::UniqueFd TakeSocket() { return std::move(bound_); }
  absl::Status Write(const v1::JobRecord& record) const;
  // NOT_FOUND, DATA_LOSS: there is none, or it is damaged. Else it may be readable another time.
  absl::StatusOr<v1::JobRecord> Read() const;
  // Of these jobs, those whose shepherds live on this node, whichever agent has them: also where we
  // may not enter that one's folder. Looks at all unix sockets and processes, once for all jobs.
  // All of these, where there are more than `most_sockets`: any user can make too many to look at.
  static std::set<spawn::JobKey> FindShepherds(const std::set<spawn::JobKey>& jobs,
                                               size_t most_sockets = 200'000);
  static bool HasShepherd(const spawn::JobKey& job) { return !FindShepherds({job}).empty(); }
  // To the shepherd that listens there.
  absl::StatusOr<os::UniqueFd> Connect() const;
  void Remove() const;

 private:
  static absl::StatusOr<JobDirectory> MakeIn(const std::string& folder, const spawn::JobKey& job,
                                             bool with_socket);
  static std::vector<JobDirectory> ListIn(const std::string& folder);
  static std::vector<JobDirectory> ListHidden(const std::string& state);
  std::string Part(size_t number) const;  // of the name; empty: it has no such part
  explicit JobDirectory(std::string path) : path_(std::move(path)) {}
  std::string path_;
  os::UniqueFd bound_;
};

}  // namespace dtrain::session
