// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/spawn/processes.h"
#include "agent/spawn/quarantine.h"
#include "common/os/unique_fd.h"
#include "dtrain/v1/state.pb.h"

namespace dtrain::spawn {

// Where a shepherd finds its end of the socket.
inline constexpr int kShepherdSocket = 3;

// A launcher's connection, by which the kernel shows who is at its other end. It shows it for one
// order.
struct Accepted {
  os::UniqueFd socket;
  bool used = false;
};
// Gone once it is closed.
using Connected = std::weak_ptr<Accepted>;

// What a shepherd is started for.
struct Order {
  Owner owner;
  std::string job_id;
  uint32_t attempt = 0;
  uint32_t lease_ms = 0, grace_ms = 0;
  // Of a launcher of this machine; absent: it has shown a certificate, or is known otherwise.
  std::optional<Connected> connected = {};
};

// Starts shepherds for users, and finds those again that an agent before us has started. Everything
// an agent does to the processes of jobs goes by this and by what it hands out. Loop thread.
class Spawner {
 public:
  Spawner() = default;
  Spawner(const Spawner&) = delete;
  Spawner& operator=(const Spawner&) = delete;
  virtual ~Spawner() = default;

  // A shepherd without a job yet, so that its start overlaps the launcher's.
  virtual absl::StatusOr<std::unique_ptr<Processes>> Spawn(Order order) = 0;

  // Calls `done` when it can tell in Adopt what runs; an error: it will not in a reasonable time.
  virtual void WhenReady(absl::AnyInvocable<void(absl::Status)> done) { done(absl::OkStatus()); }

  // What is known of a job that an agent before us has started.
  struct Trace {
    std::string job_id;
    uint32_t attempt = 0;
    std::optional<uid_t> uid;             // absent: an older agent's, without a record
    std::optional<v1::JobRecord> record;  // absent: missing or damaged
    // To who listens where we have told the shepherd to; an error: nobody does.
    absl::StatusOr<os::UniqueFd> socket;
  };
  struct Found {
    std::unique_ptr<Processes> processes;
    Owner owner;
    std::string why_not;  // it cannot be taken over, only ended; empty: it can
  };
  virtual Found Adopt(Trace trace) = 0;

  // Removes what jobs that have ended have left of their cgroups.
  virtual void Sweep() = 0;

  Quarantine& quarantine() { return quarantine_; }

 private:
  Quarantine quarantine_;
};

}  // namespace dtrain::spawn
