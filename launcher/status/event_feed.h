// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/http/message.h"
#include "common/view/event_log.h"

namespace dtrain::status {

// Those who follow a job's events. Loop thread.
class EventFeeds {
 public:
  // `log` outlives this, and this its feeds.
  explicit EventFeeds(const view::EventLog& log) : log_(log) {}

  // Events behind number `since`, a line of JSON each, until the end.
  std::unique_ptr<http::Feed> Follow(uint64_t since);
  // There may be more.
  void Wake();
  bool any() const { return !feeds_.empty(); }
  // What is there is all.
  void End();

 private:
  class Feed;
  const view::EventLog& log_;
  std::vector<Feed*> feeds_;
  bool ended_ = false;
};

}  // namespace dtrain::status
