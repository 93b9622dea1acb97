// SPDX-License-Identifier: Apache-2.0
#include "common/view/event_log.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace dtrain::view {

using Json = nlohmann::ordered_json;

void EventLog::Add(double seconds, absl::string_view kind, const Json& more) {
  Json json = {{"id", last() + 1}, {"seconds", seconds}, {"kind", std::string(kind)}};
  json.update(more);
  lines_.push_back(json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  if (lines_.size() <= kMost) return;
  lines_.pop_front();
  ++first_;
}

std::string EventLog::Lines(uint64_t& id, size_t limit) const {
  std::string out;
  for (id = std::max(id, first_ - 1); id < last() && out.size() < limit; ++id) {
    out += lines_[id + 1 - first_];
  }
  return out;
}

Json EventLog::Since(uint64_t id) const {
  Json list = Json::array();
  for (id = std::max(id, first_ - 1); id < last(); ++id) {
    list.push_back(Json::parse(lines_[id + 1 - first_]));
  }
  return list;
}

}  // namespace dtrain::view
