// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/event_feed.h"

#include <algorithm>
#include <utility>

#include "absl/functional/any_invocable.h"

namespace dtrain::status {

class EventFeeds::Feed : public http::Feed {
 public:
  // Events that have not been are those of another launcher.
  Feed(EventFeeds& feeds, uint64_t since)
      : feeds_(feeds), at_(since > feeds.log_.last() ? 0 : since) {
    feeds_.feeds_.push_back(this);
  }
  ~Feed() override { std::erase(feeds_.feeds_, this); }

  std::string Next(size_t limit) override { return feeds_.log_.Lines(at_, limit); }
  bool ended() const override { return feeds_.ended_ && !has_more(); }
  void Notify(absl::AnyInvocable<void()> task) override {
    if (has_more() || feeds_.ended_) {
      task();
    } else {
      task_ = std::move(task);
    }
  }
  void Wake() {
    if (task_ != nullptr && (has_more() || feeds_.ended_)) std::exchange(task_, nullptr)();
  }

 private:
  bool has_more() const { return at_ < feeds_.log_.last(); }

  EventFeeds& feeds_;
  uint64_t at_;
  absl::AnyInvocable<void()> task_;
};

std::unique_ptr<http::Feed> EventFeeds::Follow(uint64_t since) {
  return std::make_unique<Feed>(*this, since);
}

void EventFeeds::Wake() {
  // A feed that is woken may go away, and others too.
  const std::vector<Feed*> feeds = feeds_;
  for (Feed* feed : feeds) {
    if (std::find(feeds_.begin(), feeds_.end(), feed) != feeds_.end()) feed->Wake();
  }
}

void EventFeeds::End() {
  ended_ = true;
  Wake();
}

}  // namespace dtrain::status
