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
#include "runtime/net/socket.h"

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
  // `leaders[n]` is the rank that speaks for node n, for texts; `sockets[n]` leads there, and is
  // none for this node.
  static Result<std::unique_ptr<Streams>> Make(std::vector<int> leaders,
                                               std::vector<Socket> sockets);
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  // Other ranks need this processor, so that a wait sleeps at once. Before the first Await.
  void SetCrowded(bool crowded) { crowded_ = crowded; }

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
    Socket socket;
    int low = 1;  // bytes that must have come before the kernel says so
    std::deque<Message> out, in;
  };

  explicit Streams(std::vector<int> leaders) : leaders_(std::move(leaders)) {}
  MaybeError Spin(const Flight& flight, Deadline deadline);
  MaybeError Poll(Deadline deadline);
  MaybeError Move(size_t node, bool reads, bool writes, bool& moved);
  // What moved, or -1 with errno; 0 when the other side has closed.
  static ssize_t Write(Line& line);
  static ssize_t Read(Line& line);
  static void Done(std::deque<Message>& messages, size_t bytes);
  static void SetLow(Line& line);
  Error Lost(size_t node, ssize_t result) const;
  Error Late(const Flight& flight) const;

  const std::vector<int> leaders_;
  bool crowded_ = false;
  std::vector<Line> lines_;  // by node
  std::atomic<bool> interrupted_{false};
  Socket interrupt_;  // an eventfd
};

}  // namespace dtrain::runtime
