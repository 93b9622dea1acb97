// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/communicator.h"
#include "runtime/base/result.h"
#include "runtime/net/endpoint.h"

namespace dtrain::runtime {

// Messages that belong together: how many are still on their way. Outlives them.
struct Flight {
  int open = 0;
};

// One TCP connection to each other node for what is large. Bytes move on the thread that waits for
// them: waking another one for every piece costs more than the copy, and most where processes
// outnumber processors. One thread at a time, but where it says otherwise.
class Streams {
 public:
  // `leaders[n]` is the rank that speaks for node n, for texts.
  static Result<std::unique_ptr<Streams>> Make(int node, std::vector<int> leaders,
                                               const std::string& ip);
  ~Streams();
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  uint16_t port() const { return port_; }
  // Fails, naming the rank, when a connection is refused or not there at the deadline.
  MaybeError Connect(const std::vector<NodeEndpoint>& endpoints, Deadline deadline);

  // Messages between two nodes carry no name and no length: both sides must ask for the same ones
  // in the same order. Empty ones are none. What goes wrong shows in Await.
  void Send(int node, const char* data, size_t bytes, Flight& flight);
  void Receive(int node, char* data, size_t bytes, Flight& flight);
  // Moves bytes of all flights until this one has come and gone.
  MaybeError Await(Flight& flight, Deadline deadline);

  // Ends the wait that goes on, and all later ones. Any thread.
  void Interrupt();
  // The other nodes find the connections closed. Any thread.
  void Shutdown();

 private:
  struct Message {
    char* data;
    size_t left;
    Flight* flight;
  };
  struct Line {
    int fd = -1;
    int low = 1;  // bytes that must have come before the kernel says so
    std::deque<Message> out, in;
  };

  Streams(int node, std::vector<int> leaders) : node_(node), leaders_(std::move(leaders)) {}
  MaybeError Listen(const std::string& ip);
  MaybeError Reach(int peer, const std::vector<NodeEndpoint>& endpoints, Deadline deadline);
  MaybeError Admit(const std::vector<NodeEndpoint>& endpoints, Deadline deadline);
  void Welcome(std::vector<int>& strangers, const std::vector<NodeEndpoint>& endpoints);
  std::vector<int> Missing() const;  // ranks
  MaybeError Poll(Deadline deadline);
  // What moved, or -1 with errno; 0 when the other side has closed.
  static ssize_t Write(Line& line);
  static ssize_t Read(Line& line);
  static void Done(std::deque<Message>& messages, size_t bytes);
  static void SetLow(Line& line);
  Error Lost(size_t node, ssize_t result) const;
  Error Late(const Flight& flight) const;

  const int node_;
  const std::vector<int> leaders_;
  std::vector<Line> lines_;  // by node
  int listener_ = -1;
  int interrupt_ = -1;  // an eventfd
  uint16_t port_ = 0;
};

}  // namespace dtrain::runtime
