// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/group.h"

#include <algorithm>
#include <set>
#include <utility>

namespace dtrain::runtime {

Split SplitByColor(const std::vector<int32_t>& table, int rank, uint32_t first_id) {
  Split split;
  std::set<int32_t> colors;
  for (size_t i = 0; i < table.size(); i += 2) {
    if (table[i] >= 0) colors.insert(table[i]);
    split.everyone &= table[i] >= 0;
  }
  split.groups = static_cast<uint32_t>(colors.size());
  const int32_t mine = table[2 * static_cast<size_t>(rank)];
  if (mine < 0) return split;
  split.id = first_id + static_cast<uint32_t>(std::distance(colors.begin(), colors.find(mine)));
  for (size_t r = 0; 2 * r < table.size(); ++r) {
    if (table[2 * r] == mine) split.members.push_back(static_cast<int>(r));
  }
  std::stable_sort(split.members.begin(), split.members.end(), [&](int a, int b) {
    return table[2 * static_cast<size_t>(a) + 1] < table[2 * static_cast<size_t>(b) + 1];
  });
  return split;
}

Group& Groups::Add(std::unique_ptr<Group> group) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Group& added = *group;
  others_[added.id] = std::move(group);
  return added;
}

Group* Groups::Find(uint32_t id) {
  if (id == 0) return &world_;
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = others_.find(id);
  return found == others_.end() ? nullptr : found->second.get();
}

void Groups::Remove(uint32_t id) {
  std::unique_ptr<Group> removed;  // its threads are joined without the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = others_.find(id);
  if (found == others_.end()) return;
  removed = std::move(found->second);
  others_.erase(found);
}

int Groups::Read(uint32_t id, const std::function<int(const Group&)>& read) {
  if (id == 0) return read(world_);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = others_.find(id);
  return found == others_.end() ? -1 : read(*found->second);
}

void Groups::AbortAll(const Error& reason) {
  ForEach([&](Group& group) {
    if (group.communicator != nullptr) group.communicator->Abort(reason);
    if (group.device != nullptr) group.device->Abort(reason);
  });
}

template <typename Use>
void Groups::ForEach(Use use) {
  const std::lock_guard<std::mutex> lock(mutex_);
  use(world_);
  for (auto& [id, group] : others_) use(*group);
}

void Groups::SayLeaving() {
  ForEach([](Group& group) {
    if (group.communicator != nullptr) group.communicator->SayLeaving();
  });
}

MaybeError Groups::failure() {
  MaybeError first;
  ForEach([&](Group& group) {
    if (first) return;
    if (group.communicator != nullptr) first = group.communicator->failure();
    if (first && group.FailsAlone(*first)) first.reset();
    if (!first && group.device != nullptr) first = group.device->failure();
    if (first && group.id != 0) {
      first->message = "among the group of ranks " + MembersText(group) + ": " + first->message;
    }
  });
  return first;
}

// What is done with them may take its time, and end in AbortAll: not under the lock.
std::vector<DeviceCommunicator*> Groups::Devices() {
  std::vector<DeviceCommunicator*> devices;
  ForEach([&](Group& group) {
    if (group.device != nullptr) devices.push_back(group.device.get());
  });
  return devices;
}

MaybeError Groups::AwaitDevices() {
  for (DeviceCommunicator* device : Devices()) {
    if (MaybeError error = device->AwaitAll()) return error;
  }
  return std::nullopt;
}

MaybeError Groups::Deregister(const void* memory) {
  for (DeviceCommunicator* device : Devices()) {
    if (MaybeError error = device->Deregister(memory)) return error;
  }
  return std::nullopt;
}

std::string MembersText(const Group& group) {
  constexpr size_t kMostNamed = 16;
  std::string text;
  for (size_t r = 0; r < std::min(group.members.size(), kMostNamed); ++r) {
    text += (r > 0 ? ", " : "") + std::to_string(group.members[r]);
  }
  return text + (group.members.size() > kMostNamed ? ", ..." : "");
}

std::string LimitText(const Group& group) {
  if (!group.has_own_timeout.load()) {
    return "DTRAIN_COLLECTIVE_TIMEOUT_SECONDS sets how long to wait";
  }
  const int64_t ms = group.timeout.load().count();
  const std::string limit =
      ms % 1000 == 0 ? std::to_string(ms / 1000) + " s" : std::to_string(ms) + " ms";
  return "the limit was the group's own timeout of " + limit +
         ", set by dtrain_group_set_timeout or by timeout= of torch.distributed";
}

// Their ends wait for threads that may be in AbortAll: not under the lock. The order is the same on
// all ranks, as NCCL waits for those of the same machine.
void Groups::Clear() {
  std::map<uint32_t, std::unique_ptr<Group>> others;
  std::unique_ptr<Communicator> communicator;
  std::unique_ptr<DeviceCommunicator> device;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    others.swap(others_);
    communicator.swap(world_.communicator);
    device.swap(world_.device);
  }
  while (!others.empty()) others.erase(others.begin());
  device.reset();
}

}  // namespace dtrain::runtime
