// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "common/base/clock.h"
#include "common/os/unique_fd.h"

namespace dtrain::transport {

// Nodes that share a home share its cached agent: the first that lacks it is sent the agent, and
// the others wait and then look again. Any thread.
class PushOrder {
  struct Sending;

 public:
  // How long a node waits for another; after that it is sent the agent itself.
  static constexpr Duration kLongestWait = std::chrono::seconds(15);
  explicit PushOrder(Duration longest_wait = kLongestWait) : longest_wait_(longest_wait) {}
  Duration longest_wait() const { return longest_wait_; }

  // What a node that lacks the agent is to do. Hold it until the node's agent answers or the node
  // fails: its end wakes the nodes that wait for this one. May outlive the PushOrder.
  class Ticket {
   public:
    Ticket() = default;
    Ticket(Ticket&&) noexcept = default;
    Ticket& operator=(Ticket&& other) noexcept;
    ~Ticket() { Release(); }
    // -1: send the agent. Otherwise wait until this is readable, then have the node look again.
    int wait_fd() const { return look_.get(); }
    // The agent answers: nodes of this home that ask from now on, having looked before it was
    // there, look again at once.
    void SetArrived() { arrived_ = true; }

   private:
    friend class PushOrder;
    void Release();
    std::shared_ptr<Sending> sending_;  // of the node that is sent it
    std::string key_;
    bool arrived_ = false;
    os::UniqueFd look_;  // of a node that waits
  };

  // `home`: the name that the node gives its home, the same on all nodes that share it; empty if
  // unknown. `agent`: which one it lacks.
  Ticket Ask(const std::string& home, const std::string& agent);

 private:
  struct Push {
    bool arrived = false;
    os::UniqueFd done;  // an eventfd once a node waits; each has a duplicate
  };
  struct Sending {
    std::mutex mutex;
    std::map<std::string, Push> pushes;  // by home and agent
  };
  const Duration longest_wait_;
  const std::shared_ptr<Sending> sending_ = std::make_shared<Sending>();
};

}  // namespace dtrain::transport
