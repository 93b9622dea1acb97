// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/strings/string_view.h"

namespace dtrain::view {

// What has happened to a job, numbered from 1 on, as lines of JSON. The oldest of many go. Pure.
class EventLog {
 public:
  static constexpr size_t kMost = 1000;

  // `seconds`: since the launch. `more`: an object with what else there is to say.
  void Add(double seconds, absl::string_view kind, const nlohmann::ordered_json& more);

  uint64_t last() const { return first_ + lines_.size() - 1; }
  // Events behind number `id`, a line each, about `limit` bytes of them; sets `id` to the last.
  std::string Lines(uint64_t& id, size_t limit) const;
  nlohmann::ordered_json Since(uint64_t id) const;

 private:
  uint64_t first_ = 1;
  std::deque<std::string> lines_;  // each with its line end
};

}  // namespace dtrain::view
