// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/pmi_store.h"

#include <utility>

#include "agent/shepherd/pmi_line.h"

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

}  // namespace dtrain::shepherd
