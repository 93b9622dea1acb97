// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "common/base/clock.h"
#include "common/os/unique_fd.h"

namespace dtrain::transport {

// Nodes that share a home share its cached agent: the first that lacks it is sent the agent, and
// the others wait and then look again. If the first fails or takes long, two more are sent it, then
// four, eight, and so on, until the agent of one of them answers. Any thread.
class PushOrder {
  struct Pushes;

 public:
  // How long nodes wait for the first; each later group has a third of that.
  static constexpr Duration kLongestWait = std::chrono::seconds(15);
  explicit PushOrder(Duration longest_wait = kLongestWait);
  Duration longest_wait() const { return longest_wait_; }
  Duration next_wait() const { return pushes_->next_wait; }

  // What a node that lacks the agent is to do. Hold it until the node's agent answers or the node
  // fails. May outlive the PushOrder.
  class Ticket {
   public:
    Ticket() = default;
    Ticket(Ticket&&) noexcept = default;
    Ticket& operator=(Ticket&& other) noexcept;
    ~Ticket() { Release(); }
    // -1: send the agent. Otherwise wait until this is readable, then have the node look again; it
    // is sent the agent if it finds none.
    int wait_fd() const { return look_ == nullptr ? -1 : look_->get(); }
    // Of a node that has waited for longest_wait(), then for next_wait() each time: true if it is
    // to be sent the agent now.
    bool TakeTurn(TimePoint now);
    // The agent answers: all nodes of this home, those that ask later too, look again at once.
    void SetArrived() { arrived_ = true; }

   private:
    friend class PushOrder;
    void Release();
    std::shared_ptr<Pushes> pushes_;
    std::string key_;
    uint64_t number_ = 0;
    bool arrived_ = false;
    std::shared_ptr<os::UniqueFd> look_;  // an eventfd, of a node that waits
  };

  // `home`: the name that the node gives its home, the same on all nodes that share it; empty if
  // unknown. `agent`: which one it lacks.
  Ticket Ask(const std::string& home, const std::string& agent);

 private:
  struct Push {
    bool arrived = false;
    std::set<uint64_t> sending;                                 // numbers of tickets
    std::map<uint64_t, std::shared_ptr<os::UniqueFd>> waiting;  // in the order they asked
    size_t group = 2;  // how many are sent it next, if nobody's arrives
    size_t turns = 0;  // how many more of the present group
    // No other group before; nullopt: the present one begins when somebody asks for a turn.
    std::optional<TimePoint> group_until = TimePoint::min();

    void WakeGroup();
    void WakeAll();
  };
  struct Pushes {
    explicit Pushes(Duration next) : next_wait(next) {}
    std::mutex mutex;
    const Duration next_wait;
    uint64_t last_number = 0;
    std::map<std::string, Push> by_key;  // home and agent
  };
  const Duration longest_wait_;
  const std::shared_ptr<Pushes> pushes_;
};

}  // namespace dtrain::transport
