// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/page/worker_page.h"
#include "runtime/base/collective.h"
#include "runtime/base/device.h"
#include "runtime/base/types.h"
#include "runtime/engine/group.h"
#include "runtime/engine/matching.h"

namespace dtrain::runtime {

// One collective of the program on its way.
struct Operation {
  Group* group = nullptr;
  Collective what;
  std::string name;   // of the program's own, or empty
  std::string shape;  // what else must be the same on all ranks, or empty

  // Of one with any number of rows: those of this rank, their length in elements, and what gives
  // memory for all that come. Executor::Measure makes `what` of it; `counts` is what that points
  // to.
  std::vector<uint64_t> rows;
  size_t length = 0;
  std::function<void*(const uint64_t*)> allocate;
  std::vector<uint64_t> counts;

  Pending pending;  // what the other ranks hear of it; set by SetPending
  std::chrono::steady_clock::time_point added{};
  uint64_t number = 0;  // among those of its group; given by the executor

  // Where the group has a device: what the operation comes after, what this rank's buffers say and,
  // once they have agreed, all ranks', and by what it is known there once it is enqueued.
  DeviceCommunicator::Point after;
  Via via = Via::kHost;
  uint64_t registered = 0;  // DeviceCommunicator::RegisteredUse
  DeviceCommunicator::Ticket ticket = 0;

  // Small things of the library's own, which have nothing to do on a GPU.
  bool on_host = false;
  // Of an asynchronous one on the host that is not an all-reduce: runs on all ranks after it,
  // unless it fails, and before anything else of its group. May use the group's communicators.
  std::function<void()> then;

  void SetPending(uint64_t key) {
    pending = {key, SignatureOf(what, shape), registered, via, OutlineOf(what)};
  }

  // Or on the host, where `via` says so.
  bool on_device() const {
    return group->device != nullptr && what.kind != Collective::Kind::kBarrier && !on_host;
  }
};

inline uint64_t BytesOf(const Collective& what) {
  return what.kind == Collective::Kind::kBarrier ? 0 : what.count * ElementSize(what.type);
}

inline TimelineKind KindOf(const Collective& what) {
  return static_cast<TimelineKind>(static_cast<uint32_t>(what.kind));
}

}  // namespace dtrain::runtime
