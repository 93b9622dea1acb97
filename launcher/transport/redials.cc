// SPDX-License-Identifier: Apache-2.0
#include "launcher/transport/redials.h"

#include <algorithm>
#include <utility>

namespace dtrain::transport {

Redials::Redials(loop::Loop& loop, uint32_t seed)
    : state_(std::make_shared<State>(loop)), random_(seed) {}

void Redials::State::LetIn() {
  const TimePoint now = loop.Now();
  while (!under_way.empty() && under_way.front()->began + kLongestTry <= now) under_way.pop_front();
  while (under_way.size() < kMost && !queue.empty()) {
    const std::shared_ptr<Try> next = std::move(queue.front());
    queue.pop_front();
    next->began = now;
    under_way.push_back(next);
    loop.Post([next] {
      // Its place was given up meanwhile, or it was let in at once and has nothing to call.
      if (loop::Task go = std::exchange(next->go, nullptr)) go();
    });
  }
  overdue.Cancel();
  if (queue.empty()) return;
  overdue.At(under_way.front()->began + kLongestTry, [this] { LetIn(); });
}

Redials::Place Redials::Enter(loop::Task go) {
  Place place;
  place.state_ = state_;
  place.mine_ = std::make_shared<Try>();
  place.mine_->go = std::move(go);
  state_->queue.push_back(place.mine_);
  state_->LetIn();
  return place;
}

Redials::Place Redials::TryEnter() {
  state_->LetIn();
  if (state_->under_way.size() >= kMost || !state_->queue.empty()) return {};
  return Enter(nullptr);
}

Duration Redials::Pause(int failed, Duration longest) {
  if (failed <= 0) return Duration::zero();
  Duration pause = kFirstPause;
  for (int i = 1; i < failed && pause < kLongestPause; ++i) pause *= 2;
  pause = std::min({pause, longest, kLongestPause});
  const int64_t half = (pause / 2).count();
  return Duration(half + std::uniform_int_distribution<int64_t>(0, half)(random_));
}

Redials::Place& Redials::Place::operator=(Place&& other) noexcept {
  if (this == &other) return *this;
  Leave();
  state_ = std::move(other.state_);
  mine_ = std::move(other.mine_);
  return *this;
}

void Redials::Place::Leave() {
  const std::shared_ptr<Try> mine = std::exchange(mine_, nullptr);
  if (mine == nullptr) return;
  mine->go = nullptr;
  state_->queue.remove(mine);
  if (state_->under_way.remove(mine) > 0) state_->LetIn();
}

}  // namespace dtrain::transport
