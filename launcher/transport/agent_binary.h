// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/loop/loop.h"
#include "common/loop/threads.h"
#include "common/os/unique_fd.h"
#include "launcher/transport/push_order.h"

namespace dtrain::transport {

// The agent program for one kind of machine, read once.
struct AgentImage {
  std::string path;
  std::string sha256;  // 64 hex digits
  uint64_t size = 0;
  std::string machine;  // as uname -m says it; empty when it is no ELF file of a machine we know
  std::string loader;   // the dynamic loader it needs; empty when it names none
  os::UniqueFd fd;      // open on what was hashed, whatever becomes of the path

  // The same bytes as gzip has them, made on the first call: a fifth of a second of CPU. Any thread
  // but the loop's. Empty when the file is no longer what was hashed.
  const std::string& Packed() const;
  // Asked once before each push, from any thread: whether to send it packed. Not the first few:
  // one node has the whole agent from a fast network before it is packed and unpacked.
  bool IsWorthPacking() const;

 private:
  struct Pack {
    std::atomic<int> pushes{0};
    std::once_flag once;
    std::string bytes;
  };
  std::unique_ptr<Pack> pack_ = std::make_unique<Pack>();
};

// The agents of one launcher: that of its own machine first, then those for others.
using AgentImages = std::vector<AgentImage>;

// What uname -m says on machines that run this ELF file, and its dynamic loader; empty when not
// known. Pure.
std::string ElfMachine(absl::string_view first_bytes);
std::string ElfLoader(absl::string_view first_bytes);

// The agent images, hashed on threads of their own while connections come up: tens of milliseconds,
// spent only where they are asked for. Outlives the transports that use it.
class AgentBinary {
 public:
  using Result = absl::StatusOr<AgentImages>;
  // `path` empty: dtrain-agent beside the running program. Those for other machines are
  // ../lib/dtrain/agent-MACHINE from there, where they exist.
  // `longest_wait`: PushOrder's.
  explicit AgentBinary(loop::Loop& loop, std::string path = "",
                       Duration longest_wait = PushOrder::kLongestWait);
  AgentBinary(const AgentBinary&) = delete;
  AgentBinary& operator=(const AgentBinary&) = delete;

  const std::string& path() const { return path_; }
  // Loop thread: the images will be needed. Again: nothing.
  void StartLoading();
  // Loop thread: calls back on the loop when they are known, never from inside.
  void WhenLoaded(absl::AnyInvocable<void(const Result&)> done);
  // Any other thread, after StartLoading: waits for it.
  const Result& Wait() const { return future_.get(); }
  // Loop thread: calls back on the loop when image.Packed() has its answer, never from inside.
  void WhenPacked(const AgentImage& image, loop::Task done);
  // Any thread: which nodes are sent an agent, and which wait.
  PushOrder& order() { return order_; }

 private:
  void LoadOne(size_t index);

  loop::Loop& loop_;
  const std::string path_;
  bool started_ = false;
  PushOrder order_;
  std::vector<std::string> paths_;
  std::vector<absl::StatusOr<AgentImage>> loaded_;  // each written by the thread that loads it
  std::atomic<size_t> missing_{0};
  std::promise<Result> promise_;
  std::shared_future<Result> future_ = promise_.get_future().share();
  loop::BlockingPool pool_{2};
};

// One agent on its way to a node: what the bootstrap script reads after its `need` line.
class AgentPush {
 public:
  // `packed`: the node has gzip; it is sent like that if image.Packed() has bytes.
  AgentPush(const AgentImage& image, bool packed);
  // The next piece, at most `size` bytes; empty at the end. An image that has become shorter than
  // what was hashed is cut short: then complete() is false, and the other side counts and says so.
  std::string Next(size_t size);
  bool complete() const { return sent_ == total_; }

 private:
  const AgentImage& image_;
  const std::string* packed_;
  std::string header_;
  uint64_t total_;
  uint64_t sent_ = 0;
};

}  // namespace dtrain::transport
