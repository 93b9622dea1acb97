// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/engines.h"

#include <vector>

namespace dtrain::runtime {
namespace {

// A handle has the group's number above so many bits; groups beyond that share the world's engine.
constexpr int kHandleBits = 44;
constexpr uint32_t kMostGroups = uint32_t{1} << (64 - kHandleBits);

}  // namespace

Engine& Engines::Of(uint32_t group) {
  if (group == 0) return world_;
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = others_.find(group);
  return found == others_.end() ? world_ : *found->second;
}

std::shared_ptr<Engine> Engines::OfHandle(dtrain_handle handle) {
  const auto group = static_cast<uint32_t>(handle >> kHandleBits);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = others_.find(group);
  if (found != others_.end()) return found->second;
  return {std::shared_ptr<void>(), &world_};  // owned by nobody
}

void Engines::Add(uint32_t group) {
  if (group >= kMostGroups) return;
  progress_.SetShared();
  auto engine = std::make_shared<Engine>(groups_, progress_, failure_, order_, false,
                                         dtrain_handle{group} << kHandleBits);
  engine->queue.SetFusionLike(world_.queue);
  const std::lock_guard<std::mutex> lock(mutex_);
  others_[group] = std::move(engine);
}

void Engines::Retire(uint32_t group) {
  std::shared_ptr<Engine> engine;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = others_.find(group);
    if (found == others_.end()) return;
    engine = found->second;
  }
  engine->queue.Stop();
  engine->executor.FreeBuffer();
  if (!engine->queue.empty()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  others_.erase(group);
}

void Engines::DrainAll(bool own) {
  std::vector<std::shared_ptr<Engine>> all;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [group, engine] : others_) all.push_back(engine);
  }
  world_.queue.Drain(own);
  for (const auto& engine : all) engine->queue.Drain(own);
}

}  // namespace dtrain::runtime
