// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/base/clock.h"

namespace dtrain::elastic {

// How Horovod's own driver decides, from the behaviour of its v0.28.1: discovery, order and
// blacklist of hosts, assignment of slots, records of workers and what follows when all have one.
// Written from that, not from ours, to be compared with. It has no worker processes: the test
// reports what they do. New hosts come in the order of the list, as Horovod's is that of a set.
class FakeDriver {
 public:
  enum class State { kReady, kSuccess, kFailure };
  enum class End {
    kNone,
    kSuccess,
    kAllFailed,
    kAllBlacklisted,
    kResetLimit,
    kNoHostLeft,
    kTimeout
  };
  // rank, size, local rank, local size, cross rank, cross size
  using Slot = std::tuple<int, int, int, int, int, int>;
  using Key = std::pair<std::string, int>;
  using Assignments = std::map<std::string, std::vector<Slot>>;

  int np = 1;
  int min_np = 1;
  int min_hosts = 1;  // at the start
  std::optional<int> max_np;
  std::optional<int> reset_limit;
  std::optional<Duration> cooldown;  // with equal limits there is nothing random in it
  Duration timeout = std::chrono::seconds(600);

  void Start(TimePoint now) {
    now_ = now;
    waits_ = true;
    wait_until_ = now + timeout;
  }

  // One pass of the discovery thread.
  void Discover(TimePoint now, const std::vector<std::pair<std::string, int>>& found) {
    now_ = now;
    if (end_ != End::kNone) return;
    std::map<std::string, int> slots;
    for (const auto& [host, count] : found) slots[host] = count;
    bool resurrected = false;
    for (const auto& each : slots) resurrected = resurrected || IsResurrected(each.first);
    if (slots != slots_ || resurrected) {
      std::vector<std::string> order;
      for (const std::string& host : order_) {
        if (slots.count(host) != 0 && IsAvailable(host)) order.push_back(host);
      }
      for (const auto& each : found) {
        const std::string& host = each.first;
        const bool known = std::find(order.begin(), order.end(), host) != order.end();
        if (!known && IsAvailable(host)) order.push_back(host);
      }
      slots_ = slots;
      order_ = order;
      for (const auto& each : slots_) {
        if (IsResurrected(each.first)) hosts_[each.first] = {};
      }
    }
    if (waits_) Activate();
  }
  void OnTime(TimePoint now) {
    now_ = now;
    if (end_ == End::kNone && waits_ && now_ >= wait_until_) end_ = End::kTimeout;
  }

  void Record(const std::string& host, int slot, State state) {
    if (end_ != End::kNone || hosts_[host].blacklisted) return;
    const auto seats = assigned_.find(host);
    if (seats == assigned_.end() || static_cast<int>(seats->second.size()) <= slot) return;
    const Key key(host, slot);
    const bool known = states_.count(key) != 0;
    if (known && state != State::kFailure) return;
    states_[key] = state;
    if (states_.size() == world_size_) AllRecorded();
  }

  bool WouldChange() {
    const std::vector<std::string> current = Current();
    Assignments next;
    if (CountSlots(current) >= min_np) next = Assign(current);
    return next != assigned_;
  }

  End end() const { return end_; }
  bool waits() const { return waits_; }
  int rendezvous() const { return rendezvous_; }
  int resets() const { return reset_count_; }
  const Assignments& assigned() const { return assigned_; }
  bool has_failures() const { return Count(State::kFailure) > 0; }
  // Nobody in the assignment has what its workers know.
  bool has_only_strangers() const { return only_strangers_; }
  std::vector<std::string> order() { return Current(); }
  bool is_blacklisted(const std::string& host) { return hosts_[host].blacklisted; }

 private:
  struct Host {
    bool blacklisted = false;
    std::optional<TimePoint> cooldown_end;
  };

  bool IsResurrected(const std::string& host) {
    const Host& state = hosts_[host];
    return state.cooldown_end && *state.cooldown_end <= now_;
  }
  bool IsAvailable(const std::string& host) {
    return !hosts_[host].blacklisted || IsResurrected(host);
  }
  void Blacklist(const std::string& host) {
    Host& state = hosts_[host];
    state.blacklisted = true;
    if (state.cooldown_end && *state.cooldown_end > now_) return;
    if (cooldown) state.cooldown_end = now_ + *cooldown;
  }
  std::vector<std::string> Current() {
    std::erase_if(order_, [this](const std::string& host) { return hosts_[host].blacklisted; });
    return order_;
  }
  int CountSlots(const std::vector<std::string>& order) {
    int count = 0;
    for (const std::string& host : order) count += slots_[host];
    return count;
  }
  size_t Count(State state) const {
    return static_cast<size_t>(std::count_if(states_.begin(), states_.end(),
                                             [state](auto& each) { return each.second == state; }));
  }

  Assignments Assign(const std::vector<std::string>& order) {
    int rank = 0;
    std::vector<std::pair<std::string, std::vector<int>>> ranks;
    std::map<int, std::vector<std::string>> cross;  // by local rank
    for (const std::string& host : order) {
      ranks.push_back({host, {}});
      for (int local = 0; local < slots_[host]; ++local) {
        if (max_np && rank == *max_np) break;
        ranks.back().second.push_back(rank++);
        cross[local].push_back(host);
      }
    }
    Assignments assigned;
    for (const auto& [host, mine] : ranks) {
      for (size_t i = 0; i < mine.size(); ++i) {
        const std::vector<std::string>& same = cross[static_cast<int>(i)];
        const auto at = std::find(same.begin(), same.end(), host) - same.begin();
        assigned[host].push_back({mine[i], rank, static_cast<int>(i), static_cast<int>(mine.size()),
                                  static_cast<int>(at), static_cast<int>(same.size())});
      }
    }
    return assigned;
  }

  void Activate() {
    const std::vector<std::string> current = Current();
    const bool first = rendezvous_ == 0;
    if (CountSlots(current) < (first ? np : min_np)) return;
    if (first && static_cast<int>(current.size()) < min_hosts) return;
    waits_ = false;
    const Assignments next = Assign(current);
    if (!assigned_.empty()) {
      bool any = false;
      bool any_ready = false;
      for (const auto& [host, slots] : next) {
        any = any || assigned_.count(host) != 0;
        any_ready = any_ready || ready_.count(host) != 0;
      }
      if (!any) {
        end_ = End::kNoHostLeft;
        return;
      }
      only_strangers_ = !any_ready;
    }
    assigned_ = next;
    states_.clear();
    world_size_ = 0;
    for (const auto& [host, slots] : assigned_) world_size_ += slots.size();
    ++rendezvous_;
  }

  void AllRecorded() {
    if (Count(State::kSuccess) > 0) {
      end_ = End::kSuccess;
      return;
    }
    if (Count(State::kFailure) == world_size_) {
      end_ = End::kAllFailed;
      return;
    }
    ready_.clear();
    for (const auto& [key, state] : states_) {
      if (state == State::kFailure) Blacklist(key.first);
    }
    bool all = true;
    for (const auto& [key, state] : states_) {
      all = all && hosts_[key.first].blacklisted;
      if (!hosts_[key.first].blacklisted) ready_.insert(key.first);
    }
    if (all) {
      end_ = End::kAllBlacklisted;
      return;
    }
    if (reset_limit && reset_count_ >= *reset_limit) {
      end_ = End::kResetLimit;
      return;
    }
    ++reset_count_;
    waits_ = true;
    wait_until_ = now_ + timeout;
    Activate();
  }

  TimePoint now_;
  std::map<std::string, int> slots_;
  std::vector<std::string> order_;
  std::map<std::string, Host> hosts_;
  Assignments assigned_;
  std::map<Key, State> states_;
  std::set<std::string> ready_;  // hosts that had no failure in the last round
  size_t world_size_ = 0;
  int rendezvous_ = 0;
  int reset_count_ = 0;
  bool waits_ = false;
  bool only_strangers_ = false;
  TimePoint wait_until_ = kNever;
  End end_ = End::kNone;
};

}  // namespace dtrain::elastic
