// SPDX-License-Identifier: Apache-2.0
#include "launcher/elastic/host_book.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

namespace dtrain::elastic {

HostBook::HostBook(std::optional<CoolDown> range, uint64_t seed) : range_(range), random_(seed) {}

HostChange HostBook::Found(TimePoint now, const std::vector<HostSlots>& hosts) {
  HostChange change = kNoChange;
  std::map<std::string, uint32_t> slots;
  std::vector<std::string> listed;
  for (const HostSlots& each : hosts) {
    if (each.slots == 0) continue;
    if (slots.insert_or_assign(each.host, each.slots).second) listed.push_back(each.host);
  }
  for (const auto& [host, before] : slots_) {
    const auto found = slots.find(host);
    const uint32_t after = found == slots.end() ? 0 : found->second;
    if (after < before) change |= kHostsRemoved;
    if (after > before) change |= kHostsAdded;
  }
  for (const auto& [host, after] : slots) {
    if (slots_.count(host) == 0) change |= kHostsAdded;
  }
  slots_ = std::move(slots);
  listed_ = std::move(listed);
  std::erase_if(order_, [this](const std::string& host) { return slots_.count(host) == 0; });
  const std::set<std::string> known(order_.begin(), order_.end());
  for (const std::string& host : listed_) {
    const auto denial = denials_.find(host);
    const bool denied = denial != denials_.end() && denial->second.denied;
    if (!denied && known.count(host) == 0) order_.push_back(host);
  }
  return change | OnTime(now);
}

HostChange HostBook::OnTime(TimePoint now) {
  std::set<std::string> back;
  for (auto& [host, denial] : denials_) {
    if (!denial.denied || denial.until() > now) continue;
    denial.denied = false;
    if (slots_.count(host) != 0) back.insert(host);
  }
  if (back.empty()) return kNoChange;
  for (const std::string& host : listed_) {
    if (back.count(host) != 0) order_.push_back(host);
  }
  return kHostsAdded;
}

void HostBook::Deny(TimePoint now, const std::string& host, TimePoint not_before) {
  Denial& denial = denials_[host];
  if (denial.cool_until <= now) {
    ++denial.times;
    denial.cool_until = range_ ? now + Wait(denial.times) : kNever;
  }
  denial.dead_at = std::max(denial.dead_at, not_before);
  denial.denied = true;
  std::erase(order_, host);
}

void HostBook::NotBefore(TimePoint now, const std::string& host, TimePoint at) {
  if (at <= now) return;
  Denial& denial = denials_[host];
  denial.dead_at = std::max(denial.dead_at, at);
  denial.denied = true;
  std::erase(order_, host);
}

Duration HostBook::Wait(uint32_t times) {
  Duration wait = range_->low;
  for (uint32_t i = 0; i < times && wait < range_->high; ++i) wait *= 2;
  const double part = static_cast<double>(random_() >> 11) * 0x1p-53;  // 0 <= part < 1
  wait += std::chrono::duration_cast<Duration>(range_->low * part);
  return std::max(range_->low, std::min(range_->high, wait));
}

void HostBook::OnAttempt() {
  for (auto& [host, denial] : denials_) {
    if (denial.cool_until == kNever) denial.cool_until = TimePoint::min();
  }
}

std::vector<HostSlots> HostBook::usable() const {
  std::vector<HostSlots> hosts;
  hosts.reserve(order_.size());
  for (const std::string& host : order_) hosts.push_back({host, slots_.at(host)});
  return hosts;
}

bool HostBook::IsDeniedForEver(const std::string& host) const {
  const auto denial = denials_.find(host);
  return denial != denials_.end() && denial->second.denied && denial->second.until() == kNever;
}

TimePoint HostBook::NextDeadline() const {
  TimePoint next = kNever;
  for (const auto& [host, denial] : denials_) {
    if (denial.denied) next = std::min(next, denial.until());
  }
  return next;
}

}  // namespace dtrain::elastic
