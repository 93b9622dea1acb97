// SPDX-License-Identifier: Apache-2.0
#include "launcher/transport/push_order.h"

#include <fcntl.h>
#include <sys/eventfd.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace dtrain::transport {
namespace {

int NewEvent(unsigned count) { return eventfd(count, EFD_CLOEXEC | EFD_NONBLOCK); }

}  // namespace

PushOrder::Ticket PushOrder::Ask(const std::string& home, const std::string& agent) {
  Ticket ticket;
  if (home.empty()) return ticket;
  std::string key = absl::StrCat(home, " ", agent);
  const std::lock_guard lock(sending_->mutex);
  const auto [place, is_first] = sending_->pushes.try_emplace(key);
  Push& push = place->second;
  if (is_first) {
    ticket.sending_ = sending_;
    ticket.key_ = std::move(key);
    return ticket;
  }
  // Without a descriptor it does not wait.
  if (push.arrived) {
    ticket.look_.Reset(NewEvent(1));
    return ticket;
  }
  if (!push.done) push.done.Reset(NewEvent(0));
  if (push.done) ticket.look_.Reset(fcntl(push.done.get(), F_DUPFD_CLOEXEC, 0));
  return ticket;
}

PushOrder::Ticket& PushOrder::Ticket::operator=(Ticket&& other) noexcept {
  Release();
  sending_ = std::move(other.sending_);
  key_ = std::move(other.key_);
  arrived_ = other.arrived_;
  look_ = std::move(other.look_);
  return *this;
}

void PushOrder::Ticket::Release() {
  const std::shared_ptr<Sending> sending = std::exchange(sending_, nullptr);
  if (sending == nullptr) return;
  const std::lock_guard lock(sending->mutex);
  const auto place = sending->pushes.find(key_);
  const os::UniqueFd done = std::move(place->second.done);
  // Nobody reads it, so it stays readable for all duplicates.
  if (done) eventfd_write(done.get(), 1);
  if (arrived_) {
    place->second.arrived = true;
  } else {
    sending->pushes.erase(place);
  }
}

}  // namespace dtrain::transport
