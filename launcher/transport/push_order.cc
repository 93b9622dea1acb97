// SPDX-License-Identifier: Apache-2.0
#include "launcher/transport/push_order.h"

#include <sys/eventfd.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace dtrain::transport {
namespace {

std::shared_ptr<os::UniqueFd> NewEvent() {
  os::UniqueFd event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  return event ? std::make_shared<os::UniqueFd>(std::move(event)) : nullptr;
}

// Nobody reads it, so it stays readable.
void Wake(const os::UniqueFd& event) { eventfd_write(event.get(), 1); }

}  // namespace

PushOrder::PushOrder(Duration longest_wait)
    : longest_wait_(longest_wait), pushes_(std::make_shared<Pushes>(longest_wait / 3)) {}

PushOrder::Ticket PushOrder::Ask(const std::string& home, const std::string& agent) {
  Ticket ticket;
  if (home.empty()) return ticket;
  const std::lock_guard lock(pushes_->mutex);
  ticket.pushes_ = pushes_;
  ticket.key_ = absl::StrCat(home, " ", agent);
  ticket.number_ = ++pushes_->last_number;
  const auto [place, is_first] = pushes_->by_key.try_emplace(ticket.key_);
  Push& push = place->second;
  // Without a descriptor it does not wait.
  if (!is_first) ticket.look_ = NewEvent();
  if (ticket.look_ == nullptr) {
    push.sending.insert(ticket.number_);
  } else if (push.arrived) {
    Wake(*ticket.look_);
  } else {
    push.waiting.emplace(ticket.number_, ticket.look_);
  }
  return ticket;
}

// The oldest of those that wait are sent it: they look, find none, and ask again.
void PushOrder::Push::WakeGroup() {
  for (size_t left = group; left > 0 && !waiting.empty(); --left) {
    const auto oldest = waiting.begin();
    Wake(*oldest->second);
    sending.insert(oldest->first);
    waiting.erase(oldest);
  }
  group *= 2;
  turns = 0;
  group_until.reset();
}

void PushOrder::Push::WakeAll() {
  for (const auto& [number, event] : waiting) Wake(*event);
  waiting.clear();
}

PushOrder::Ticket& PushOrder::Ticket::operator=(Ticket&& other) noexcept {
  Release();
  pushes_ = std::move(other.pushes_);
  key_ = std::move(other.key_);
  number_ = other.number_;
  arrived_ = other.arrived_;
  look_ = std::move(other.look_);
  return *this;
}

bool PushOrder::Ticket::TakeTurn(TimePoint now) {
  const std::lock_guard lock(pushes_->mutex);
  Push& push = pushes_->by_key.at(key_);
  if (push.sending.count(number_) != 0) return true;
  if (push.arrived) return false;
  if (!push.group_until) push.group_until = now + pushes_->next_wait;
  if (push.turns == 0) {
    if (now < *push.group_until) return false;
    push.turns = push.group;
    push.group *= 2;
    push.group_until = now + pushes_->next_wait;
  }
  --push.turns;
  push.waiting.erase(number_);
  push.sending.insert(number_);
  return true;
}

void PushOrder::Ticket::Release() {
  const std::shared_ptr<Pushes> pushes = std::exchange(pushes_, nullptr);
  if (pushes == nullptr) return;
  const std::lock_guard lock(pushes->mutex);
  const auto place = pushes->by_key.find(key_);
  Push& push = place->second;
  push.sending.erase(number_);
  push.waiting.erase(number_);
  push.arrived = push.arrived || arrived_;
  if (push.arrived) {
    push.WakeAll();
  } else if (push.sending.empty() && push.waiting.empty()) {
    pushes->by_key.erase(place);
  } else if (push.sending.empty()) {
    push.WakeGroup();
  }
}

}  // namespace dtrain::transport
