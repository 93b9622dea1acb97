// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/pmi_group.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/shepherd/pmi_line.h"
#include "common/base/check.h"

namespace dtrain::shepherd {
namespace {

// What one node may put between two fences: far above any MPI's need, and fits a frame.
constexpr size_t kPendingMax = 16 << 20;
// Of the whole job's values; a program that puts without end must not fill the node's memory.
constexpr size_t kMostValues = 4 << 20;

}  // namespace

const char* PmiStore::Put(const std::string& key, const std::string& value) {
  if (key.empty() || key.size() > kPmiKeyMax) return "bad_key";
  if (value.size() > kPmiValueMax) return "value_too_long";
  if (pending_bytes_ + key.size() + value.size() > kPendingMax || values_.size() > kMostValues) {
    return "no_room";
  }
  pending_bytes_ += key.size() + value.size();
  pending_[key] = value;
  values_[key] = value;
  return nullptr;
}

const std::string* PmiStore::Find(const std::string& key) const {
  const auto it = values_.find(key);
  return it == values_.end() ? nullptr : &it->second;
}

void PmiStore::Take(v1::FenceEnter* enter) {
  for (auto& [key, value] : std::exchange(pending_, {})) {
    v1::KeyValue* entry = enter->add_entries();
    entry->set_key(key);
    entry->set_value(value);
  }
  pending_bytes_ = 0;
}

void PmiStore::Add(const v1::FenceRelease& release) {
  for (const v1::KeyValue& entry : release.entries()) values_[entry.key()] = entry.value();
}

PmiGroup::PmiGroup(const v1::JobPart& part)
    : kvs_name_(PmiWord(absl::StrCat(part.job_id(), "_", part.attempt()), kPmiNameMax - 1)),
      world_size_(part.world_size()),
      universe_size_(part.universe_size()),
      process_mapping_(part.process_mapping()) {
  for (const v1::WorkerSpec& worker : part.workers())
    clients_[worker.rank()].program = worker.program();
}

const std::string* PmiGroup::Find(const std::string& key) const {
  if (key != "PMI_process_mapping") return store_.Find(key);
  return process_mapping_.empty() ? nullptr : &process_mapping_;
}

v1::WorkerExit::World PmiGroup::WorldOf(uint32_t rank) const {
  const PmiClient& one = client(rank);
  if (one.left) return v1::WorkerExit::WORLD_LEFT;
  const bool inside = one.joins > 0 && !one.is_dtrain && !one.dropped && !one.aborted;
  return inside ? v1::WorkerExit::WORLD_INSIDE : v1::WorkerExit::WORLD_UNSPECIFIED;
}

PmiAction PmiGroup::Refuse(PmiClient& client, uint32_t rank, std::string why) {
  client.dropped = true;
  client.waiting.clear();
  return PmiDrop{rank, std::move(why)};
}

void PmiGroup::Join(PmiClient& client, bool frames) {
  ++client.joins;
  client.left = false;
  client.is_dtrain = false;
  client.frames = frames;
  client.fully_joined = false;
}

PmiActions PmiGroup::Leave(uint32_t rank, PmiClient& client, std::string answer) {
  client.left = true;
  client.frames = false;  // it may greet again, by either version
  client.waiting.clear();
  PmiActions actions{PmiReply{rank, std::move(answer)}};
  for (PmiAction& more : MaybeEnter()) actions.push_back(std::move(more));
  return actions;
}

PmiActions PmiGroup::EnterFence(uint32_t rank, PmiClient& client, std::string at_release) {
  // A rank that aborts tidies up in its exit handlers, where it would wait for all the others.
  if (client.aborted) return {PmiReply{rank, std::move(at_release)}};
  client.at_release = std::move(at_release);
  return MaybeEnter();
}

PmiActions PmiGroup::OnGone(uint32_t rank) {
  auto it = clients_.find(rank);
  DTRAIN_CHECK(it != clients_.end());
  if (std::exchange(it->second.gone, true)) return {};
  it->second.waiting.clear();
  return MaybeEnter();
}

PmiActions PmiGroup::OnFenceRelease(const v1::FenceRelease& release) {
  if (!entered_ || release.sequence() != sequence_) return {};
  entered_ = false;
  ++sequence_;
  store_.Add(release);
  PmiActions actions;
  for (auto& [rank, client] : clients_) {
    std::string message = std::exchange(client.at_release, {});
    if (!message.empty() && !client.gone) actions.push_back(PmiReply{rank, std::move(message)});
  }
  return actions;
}

// One that has left is not waited for, unless others have joined again since: then it is late.
bool PmiGroup::IsAwaited(const PmiClient& client) const {
  if (client.gone) return false;
  if (!client.left) return true;
  for (const auto& [rank, other] : clients_) {
    if (!other.gone && other.joins > client.joins) return true;
  }
  return false;
}

PmiActions PmiGroup::MaybeEnter() {
  if (entered_) return {};
  bool any = false;
  for (const auto& [rank, client] : clients_) {
    if (!IsAwaited(client)) continue;
    if (client.at_release.empty()) return {};
    any = true;
  }
  if (!any) return {};
  entered_ = true;
  v1::FenceEnter enter;
  enter.set_sequence(sequence_);
  store_.Take(&enter);
  return {std::move(enter)};
}

}  // namespace dtrain::shepherd
