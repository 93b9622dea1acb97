// SPDX-License-Identifier: Apache-2.0
#include "agent/stores/horovod_store.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace dtrain::stores {
namespace {

// Of one value, and of all ranks together: a program that puts without end must not fill the node's
// memory. What Gloo puts grows with the job: each rank's value has an address, of 136 bytes, for
// each of the others, and none is removed before all have met.
constexpr size_t kMostValue = 256 << 10, kMostBytes = 256 << 20;
constexpr size_t kPerAddress = 256;
// What a value costs besides.
constexpr size_t kPerValue = 128;
constexpr size_t kMostName = 4096;

size_t Cost(const std::string& key, const std::string& value) {
  return key.size() + value.size() + kPerValue;
}

}  // namespace

HorovodStore::HorovodStore(const v1::Meeting& meeting) {
  std::vector<uint32_t> cross;  // by local rank: nodes that have it
  size_t ranks = 0;
  for (const v1::MeetingNode& node : meeting.nodes()) {
    ranks += node.ranks();
    sizes_["global"] += node.ranks();
    sizes_[absl::StrCat("local_", node.host())] += node.ranks();
    cross.resize(std::max<size_t>(cross.size(), node.ranks()));
    for (uint32_t local = 0; local < node.ranks(); ++local) ++cross[local];
  }
  for (size_t local = 0; local < cross.size(); ++local) {
    sizes_[absl::StrCat("cross_", local)] = cross[local];
  }
  most_value_ = kMostValue + kPerAddress * ranks;
  most_bytes_ = kMostBytes + kPerAddress * ranks * ranks;
}

std::optional<HorovodStore::Place> HorovodStore::PlaceOf(absl::string_view target) {
  std::vector<std::string> parts = absl::StrSplit(target, '/');
  const bool well_formed = parts.size() == 3 && parts[0].empty() && !parts[1].empty() &&
                           !parts[2].empty() && target.size() <= kMostName;
  if (!well_formed) return std::nullopt;
  return Place{std::move(parts[1]), std::move(parts[2])};
}

HorovodStore::Reply HorovodStore::Handle(absl::string_view verb, absl::string_view target,
                                         std::string body) {
  const std::optional<Place> place = PlaceOf(target);
  if (!place) return {400, ""};
  if (verb == "GET") return Get(place->scope, place->key);
  if (verb == "PUT") return Put(place->scope, place->key, std::move(body));
  if (verb == "DELETE") return Delete(place->scope, place->key);
  return {501, ""};
}

// A key that is not there yet is asked for again.
HorovodStore::Reply HorovodStore::Get(const std::string& scope, const std::string& key) const {
  const auto found = scopes_.find(scope);
  if (found == scopes_.end()) return {404, ""};
  const auto value = found->second.find(key);
  return value == found->second.end() ? Reply{404, ""} : Reply{200, value->second};
}

HorovodStore::Reply HorovodStore::Put(const std::string& scope, const std::string& key,
                                      std::string value) {
  const size_t cost = Cost(key, value);
  if (bytes_ + cost + scope.size() > most_bytes_) return {507, ""};
  const auto [it, is_new] = scopes_.try_emplace(scope);
  if (is_new) bytes_ += scope.size();
  const auto [place, is_new_key] = it->second.try_emplace(key);
  if (!is_new_key) bytes_ -= Cost(key, place->second);
  bytes_ += cost;
  place->second = std::move(value);
  return {200, ""};
}

HorovodStore::Reply HorovodStore::Delete(const std::string& scope, const std::string& key) {
  const auto found = scopes_.find(scope);
  if (const auto size = sizes_.find(scope); size != sizes_.end()) {
    // "I am done": the last one takes the scope along, for the ranks to meet there again.
    std::set<std::string>& done = done_[scope];
    if (done.size() < size->second) done.insert(key);
    if (done.size() < size->second) return {200, ""};
    done_.erase(scope);
    if (found != scopes_.end()) Drop(found);
    return {200, ""};
  }
  if (found == scopes_.end()) return {200, ""};
  if (const auto value = found->second.find(key); value != found->second.end()) {
    bytes_ -= Cost(key, value->second);
    found->second.erase(value);
  }
  if (found->second.empty()) Drop(found);
  return {200, ""};
}

void HorovodStore::Drop(std::map<std::string, Scope>::iterator scope) {
  bytes_ -= scope->first.size();
  for (const auto& [key, value] : scope->second) bytes_ -= Cost(key, value);
  scopes_.erase(scope);
}

}  // namespace dtrain::stores
