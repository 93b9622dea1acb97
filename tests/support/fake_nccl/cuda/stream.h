// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/support/fake_nccl/cuda/driver.h"

namespace fake_cuda {

// A point in a stream: reached when everything before it is done.
class Mark {
 public:
  void Reach();
  void Await();
  bool reached();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reached_ = false;
};

using MarkPointer = std::shared_ptr<Mark>;

// Something that a stream or a graph runs. `launch` is for the host, at submission or at each
// launch of the graph.
struct Node {
  std::function<void()> launch;
  std::function<void()> run;
};

// Runs what it is given, in order, on a thread of its own, which starts with the first entry and
// ends after the last one when the stream has been let go.
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  enum class Kind { kLegacy, kOrdered, kFree };

  Stream(Context& context, Kind kind, int priority)
      : context(context), kind(kind), priority(priority) {}

  // With the legacy stream.
  bool ordered() const { return kind != Kind::kFree; }

  // Blocks while the stream has as many entries as the hardware queue takes. `run` comes after
  // what is there and after all of `before`.
  MarkPointer Push(std::function<void()> run, std::vector<MarkPointer> before);
  // The last entry's; nullptr when there has been none.
  MarkPointer tail();
  void LetGo();

  Context& context;
  const Kind kind;
  const int priority;

 private:
  struct Entry {
    std::function<void()> run;
    std::vector<MarkPointer> before;
    MarkPointer mark;
  };

  static constexpr size_t kMostEntries = 1024;

  void Loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Entry> queue_;  // the front one is running
  MarkPointer tail_;
  bool running_ = false;  // a thread
  bool let_go_ = false;
};

using StreamPointer = std::shared_ptr<Stream>;

// NULL and 1 are the legacy stream of `context`, 2 the thread's own. nullptr: not a stream.
StreamPointer FindStream(Context& context, void* handle);

// Into the stream's capture, or into the stream, with the legacy stream's rules. An error code.
int Submit(Stream& stream, Node node, MarkPointer* mark = nullptr);

// Returns when all streams of the context have done what they have now.
void Drain(Context& context);

}  // namespace fake_cuda
