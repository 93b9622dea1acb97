// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/inventory/held_ports.h"
#include "agent/session/gpu_release.h"
#include "agent/session/job_directory.h"
#include "agent/session/surroundings.h"
#include "common/base/node_rank.h"

namespace dtrain::session {

// What one job has of this node: its share in the agent's books, until this is destroyed, and, of a
// resident agent, its folder with the record of it. Loop thread.
class Holdings {
 public:
  // `owner`, `hello`: outlive this; `hello` is empty until the launcher has said it.
  Holdings(const Surroundings& agent, const spawn::Owner& owner, const v1::Hello& hello)
      : agent_(agent), owner_(owner), hello_(hello) {}

  const spawn::Owner& owner() const { return owner_; }
  ~Holdings();
  Holdings(const Holdings&) = delete;
  Holdings& operator=(const Holdings&) = delete;

  // "job dtrain-1f of alice".
  std::string Holder() const;

  absl::Status MakeDirectory(bool with_socket);
  // For an agent after us, which does not find it before ShowDirectory; with what it is to reserve.
  absl::Status MakeHiddenDirectory(const std::string& state, v1::Reserve used);
  absl::Status ShowDirectory() { return directory_->Show(); }
  // Of a job that an agent before us has started.
  void Adopt(JobDirectory directory, v1::Reserve reserved);
  // Takes the place of what it had. An error: something of it is held.
  absl::Status Reserve(const v1::Reserve& reserve);
  // RESOURCE_EXHAUSTED: the user's jobs hold too many.
  absl::StatusOr<inventory::HeldPorts> HoldPorts(uint32_t count, uint32_t listening);
  // Writes into an inventory what others have.
  void Mark(v1::Inventory& inventory);

  bool has_directory() const { return directory_.has_value(); }
  bool Holds(const JobDirectory& directory) const {
    return directory_ && directory_->path() == directory.path();
  }
  bool has_reserved() const { return reserved_.has_value(); }
  // Held for an attempt to come: nothing begins here in this one.
  bool is_spare() const { return reserved_ && reserved_->node_rank() == kNoNodeRank; }
  // For an agent after us, which must be able to answer for the job.
  absl::Status WriteRecord(const spawn::Processes& processes,
                           const std::vector<v1::Gpu>& gpus_before);
  // For its shepherd to listen on, once.
  os::UniqueFd TakeSocket() { return directory_->TakeSocket(); }

  // No process of the job is left. GPUs that are still in use are withheld.
  void GiveBack(const GpuRelease& gpus);
  void RemoveDirectory();

 private:
  const Surroundings& agent_;
  const spawn::Owner& owner_;
  const v1::Hello& hello_;
  std::optional<JobDirectory> directory_;
  std::optional<v1::Reserve> reserved_;
};

}  // namespace dtrain::session
