// SPDX-License-Identifier: Apache-2.0
#include "common/view/columns.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace dtrain::view {
namespace {

using Json = nlohmann::ordered_json;

// An index in quotes, a colon and a comma take so many times the room of a letter, or of a number.
constexpr size_t kLettersOfOne = 10;
constexpr size_t kNumbersOfOne = 2;

}  // namespace

template <typename T>
bool Columns::Column<T>::Set(size_t index, const T& value, uint64_t version) {
  if (values[index] == value) return false;
  values[index] = value;
  changed[index] = version;
  return true;
}

template <typename T>
void Columns::Column<T>::Resize(size_t size, uint64_t version) {
  values.assign(size, T());
  changed.assign(size, version);
}

template <typename T>
size_t Columns::Column<T>::ChangedSince(uint64_t version) const {
  size_t count = 0;
  for (const uint64_t each : changed) count += each > version ? 1 : 0;
  return count;
}

void Columns::Update(absl::Span<const RankRow> ranks, absl::Span<const NodeRow> nodes) {
  const uint64_t next = version_ + 1;
  bool is_new = ranks.size() != state_.values.size() || nodes.size() != host_.values.size();
  if (is_new) {
    whole_since_ = next;
    state_.Resize(ranks.size(), next);
    pid_.Resize(ranks.size(), next);
    exit_.Resize(ranks.size(), next);
    node_.Resize(ranks.size(), next);
    host_.Resize(nodes.size(), next);
    node_state_.Resize(nodes.size(), next);
  }
  for (size_t i = 0; i < ranks.size(); ++i) {
    is_new |= state_.Set(i, static_cast<char>(ranks[i].state), next);
    is_new |= pid_.Set(i, ranks[i].pid, next);
    is_new |= exit_.Set(i, ranks[i].exit, next);
    is_new |= node_.Set(i, ranks[i].node, next);
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    is_new |= host_.Set(i, nodes[i].host, next);
    is_new |= node_state_.Set(i, static_cast<char>(nodes[i].state), next);
  }
  if (is_new) version_ = next;
}

Json Columns::List(const Column<uint32_t>& column, uint64_t since) {
  const size_t changed = column.ChangedSince(since);
  if (changed == 0) return nullptr;
  if (changed * kNumbersOfOne >= column.values.size()) return column.values;
  Json json = Json::object();
  for (size_t i = 0; i < column.values.size(); ++i) {
    if (column.changed[i] > since) json[std::to_string(i)] = column.values[i];
  }
  return json;
}

Json Columns::Since(uint64_t version) const {
  const bool full = version < epoch_ || version > version_ || version < whole_since_;
  const uint64_t since = full ? 0 : version;
  const auto letters = [&](const Column<char>& column) -> Json {
    const size_t changed = column.ChangedSince(since);
    if (changed == 0) return nullptr;
    if (changed * kLettersOfOne >= column.values.size()) {
      return std::string(column.values.begin(), column.values.end());
    }
    Json json = Json::object();
    for (size_t i = 0; i < column.values.size(); ++i) {
      if (column.changed[i] > since) json[std::to_string(i)] = std::string(1, column.values[i]);
    }
    return json;
  };
  // Most never have one.
  Json exits = Json::object();
  for (size_t i = 0; i < exit_.values.size(); ++i) {
    if (exit_.changed[i] > since && exit_.values[i] != 0) {
      exits[std::to_string(i)] = exit_.values[i];
    }
  }
  Json hosts = nullptr;
  if (host_.ChangedSince(since) > 0) hosts = host_.values;
  Json json = {{"version", version_}, {"full", full}};
  const auto add = [&json](const char* of, const char* name, Json column) {
    if (!column.is_null() && !column.empty()) json[of][name] = std::move(column);
  };
  add("rank", "state", letters(state_));
  add("rank", "pid", List(pid_, since));
  add("rank", "exit", std::move(exits));
  add("rank", "node", List(node_, since));
  add("node", "host", std::move(hosts));
  add("node", "state", letters(node_state_));
  return json;
}

}  // namespace dtrain::view
