// SPDX-License-Identifier: Apache-2.0
// Memory that a job's collectives handle fastest.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "runtime/base/outline.h"
#include "runtime/boot/bootstrap.h"
#include "runtime/engine/job.h"

namespace dtrain::runtime {
namespace {

constexpr char kNotRegistrable[] = "memory that is not of dtrain_alloc_registrable";

// The same on every rank. `sizes` are those of the group's ranks, 0 for memory that cannot be
// registered.
MaybeError CheckSizes(const Group& group, const std::vector<int64_t>& sizes) {
  std::vector<Party> parties;
  std::vector<int64_t> different;
  for (size_t r = 0; r < sizes.size(); ++r) {
    const auto found = std::find(different.begin(), different.end(), sizes[r]);
    const auto at = static_cast<size_t>(found - different.begin());
    if (found == different.end()) {
      different.push_back(sizes[r]);
      const std::string some = "registering " + std::to_string(sizes[r]) + " bytes";
      parties.push_back({{}, sizes[r] > 0 ? some : std::string("registering ") + kNotRegistrable});
    }
    parties[at].ranks.push_back(group.members[r]);
  }
  if (different.size() > 1) return Error{DTRAIN_ERROR_MISMATCH, DescribeDisagreement(parties)};
  if (different[0] > 0) return std::nullopt;
  return Error{DTRAIN_ERROR_INVALID_ARGUMENT, std::string("this is ") + kNotRegistrable};
}

}  // namespace

Result<void*> Job::Allocate(size_t bytes, Memory kind) {
  queue_.Drain();
  Group& world = groups_.world();
  if (kind != Memory::kShared && world.device != nullptr) {
    return world.device->Allocate(bytes, kind == Memory::kRegistrable);
  }
  if (kind == Memory::kDevice) {
    return Error{DTRAIN_ERROR_UNSUPPORTED,
                 "there is no device memory in a job whose collectives run on the CPU"};
  }
  void* memory = nullptr;
  if (world.communicator != nullptr) {
    auto own = world.communicator->Allocate(bytes);
    if (own.ok() ? *own != nullptr : world.device == nullptr) return own;
  }
  if (posix_memalign(&memory, 4096, std::max<size_t>(bytes, 1)) != 0) {
    return Error{DTRAIN_ERROR_RESOURCES, "no memory for " + std::to_string(bytes) + " bytes"};
  }
  std::memset(memory, 0, bytes);
  plain_.push_back(memory);
  return memory;
}

MaybeError Job::Free(void* memory) {
  engines_.DrainAll();
  const auto found = std::find(plain_.begin(), plain_.end(), memory);
  if (found != plain_.end()) {
    std::free(memory);
    plain_.erase(found);
    return std::nullopt;
  }
  Group& world = groups_.world();
  if (world.communicator != nullptr) {
    MaybeError error = world.communicator->Free(memory);
    if (!error || world.device == nullptr) return error;
  }
  if (world.device != nullptr) {
    // What is in flight, in any group, may be of this memory.
    if (MaybeError error = executor_.broken()) return error;
    MaybeError error = groups_.AwaitDevices();
    if (!error) error = groups_.Deregister(memory);
    if (error) {
      executor_.SetBroken(*error);
      return error;
    }
    return world.device->Free(memory);
  }
  return Error{DTRAIN_ERROR_INVALID_ARGUMENT, "this memory is not from dtrain_alloc"};
}

// ---- Registration ----

Result<std::vector<int64_t>> Job::ShareSizes(Group& group, size_t bytes) {
  const auto mine = static_cast<int64_t>(bytes);
  std::vector<int64_t> sizes(static_cast<size_t>(group.size));
  Operation exchange;
  exchange.group = &group;
  exchange.name = "dtrain_register";
  exchange.on_host = true;
  exchange.what = Negotiator::RegistrationOpening();
  exchange.what.input = &mine;
  exchange.what.output = sizes.data();
  if (MaybeError error = engines_.Of(group.id).executor.Run(exchange)) return *error;
  return sizes;
}

Result<std::vector<std::string>> Job::ShareOutcomes(Group& group, const std::string& mine) {
  if (group.communicator == nullptr) return std::vector<std::string>{mine};
  std::vector<int> everybody;
  for (int r = 0; r < group.size; ++r) everybody.push_back(r);
  GroupBootstrap all(*group.communicator, std::move(everybody), group.next_run);
  auto outcomes = all.Exchange(mine, std::chrono::steady_clock::now() + env_.collective_timeout);
  if (!outcomes.ok()) executor_.SetBroken(outcomes.error());
  return outcomes;
}

// NCCL works in a buffer itself when it finds it registered, and hangs where only some ranks' are:
// so all of them have it, or none. An error of this kind has changed nothing, and the job goes on.
Result<bool> Job::Register(void* memory, uint32_t id) {
  engines_.Of(id).queue.Drain();
  Group* const group = groups_.Find(id);
  if (group == nullptr) {
    return Error{DTRAIN_ERROR_INVALID_ARGUMENT, "there is no such group"};
  }
  if (group->device == nullptr) return false;
  const size_t bytes = groups_.world().device->RegistrableBytes(memory);
  auto sizes = ShareSizes(*group, bytes);
  if (!sizes.ok()) return sizes.error();
  if (MaybeError refused = CheckSizes(*group, *sizes)) return *refused;
  // It may be registered already, on this rank or on all.
  if (MaybeError error = Deregister(memory, id)) return *error;

  constexpr char kYes[] = "1", kNo[] = "0";
  const auto mine = group->device->Register(memory, bytes, ++group->registrations);
  const std::string said = mine.ok() ? (*mine ? kYes : kNo) : mine.error().message;
  auto outcomes = ShareOutcomes(*group, said);
  if (!outcomes.ok()) return outcomes.error();
  bool everywhere = true;
  MaybeError failed;
  for (size_t r = 0; r < outcomes->size(); ++r) {
    const std::string& outcome = (*outcomes)[r];
    everywhere &= outcome == kYes;
    if (failed || outcome == kYes || outcome == kNo) continue;
    failed = Error{DTRAIN_ERROR_DEVICE, "rank " + std::to_string(group->members[r]) + ": " +
                                            Printable(outcome) +
                                            "; the memory is registered on no rank"};
  }
  if (everywhere) return true;
  if (MaybeError error = group->device->Deregister(memory)) {
    executor_.SetBroken(*error);
    return *error;
  }
  if (failed) return *failed;
  return false;
}

MaybeError Job::Deregister(const void* memory, uint32_t id) {
  engines_.Of(id).queue.Drain();
  const Group* const group = groups_.Find(id);
  if (group == nullptr) {
    return Error{DTRAIN_ERROR_INVALID_ARGUMENT, "there is no such group"};
  }
  if (group->device == nullptr) return std::nullopt;
  if (groups_.world().device->RegistrableBytes(memory) == 0) {
    return Error{DTRAIN_ERROR_INVALID_ARGUMENT, std::string("this is ") + kNotRegistrable};
  }
  if (MaybeError error = executor_.broken()) return error;
  MaybeError error = executor_.AwaitDevice(*group);
  if (!error) error = group->device->Deregister(memory);
  if (error) executor_.SetBroken(*error);
  return error;
}

}  // namespace dtrain::runtime
