// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "agent/inventory/gpu_watch.h"
#include "agent/inventory/limits.h"
#include "agent/inventory/nvml.h"
#include "agent/inventory/roots.h"
#include "agent/session/relay_room.h"
#include "agent/session/reservations.h"
#include "agent/session/session_events.h"
#include "agent/spawn/processes.h"
#include "common/loop/loop.h"
#include "common/rpc/frame_guard.h"
#include "dtrain/v1/node.pb.h"

namespace dtrain::session {

using spawn::Owner;

// Reads this node's inventory, all but the probe fields, and hands it over on the loop: at once
// or, where GPUs must be asked, later.
using ReadInventory = absl::AnyInvocable<void(absl::AnyInvocable<void(v1::Inventory)>)>;
// Looks at the GPUs again; hands over on the loop what is seen, or that a driver hangs.
using ReadGpus = absl::AnyInvocable<void(absl::AnyInvocable<void(inventory::GpuReport)>)>;
// Watches the GPUs of a job; null: they cannot be.
using WatchGpus = absl::AnyInvocable<std::unique_ptr<inventory::GpuWatches::Watch>(
    const std::vector<std::string>& uuids, inventory::GpuWatches::OnStates on_states)>;
struct Readers {
  ReadInventory inventory;
  ReadGpus gpus;
  // For callers that only want to know: what was read within the last second serves as well, and
  // without an answer of the driver it comes without GPUs.
  ReadInventory status;
  // For a job that has no use for GPUs: at once, without them.
  ReadInventory without_gpus;
  WatchGpus watch;
  inventory::LeftMemoryWarnings left_memory = {};
  inventory::Roots roots = {};  // of limits
};

// Of an agent whose sessions end with their streams: how a job may outlive it.
struct Successor {
  // Reports, on the loop, the folder in which the next agent looks for jobs, or why there is none.
  std::function<void(std::function<void(absl::StatusOr<std::string>)>)> find_place;
  // It may have the job from now on: we leave at once.
  loop::Task leave;
};

// What a session has of its agent. References outlive it.
struct Surroundings {
  loop::Loop& loop;
  Readers& readers;
  Reservations& reservations;
  Identity self;
  std::string state_directory;     // when self.resumable
  Successor* successor = nullptr;  // null: when self.resumable, or there can be none
  // Bytes of what shepherds of the job's user report and is kept; null: no limit.
  std::shared_ptr<rpc::SharedLimit> reports = nullptr;
  // For frames that wait between that user's launchers and shepherds; null: no limit.
  std::shared_ptr<RelayRoom> relays = nullptr;
};

}  // namespace dtrain::session
