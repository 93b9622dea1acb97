// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/loop/loop.h"
#include "common/loop/threads.h"
#include "common/os/unique_fd.h"

namespace dtrain::transport {

// The agent program that nodes are to run, read once.
struct AgentImage {
  std::string path;
  std::string sha256;  // 64 hex digits
  uint64_t size = 0;
  std::string machine;  // as uname -m says it; empty when it is no ELF file of a machine we know
  os::UniqueFd fd;      // open on what was hashed, whatever becomes of the path
};

// What uname -m says on machines that run this ELF file; empty when not known. Pure.
std::string ElfMachine(absl::string_view first_bytes);

// The agent image, hashed on a thread of its own while connections come up: tens of milliseconds,
// spent only where it is asked for. Outlives the transports that use it.
class AgentBinary {
 public:
  using Result = absl::StatusOr<AgentImage>;
  // `path` empty: dtrain-agent beside the running program.
  explicit AgentBinary(loop::Loop& loop, std::string path = "");
  AgentBinary(const AgentBinary&) = delete;
  AgentBinary& operator=(const AgentBinary&) = delete;

  const std::string& path() const { return path_; }
  // Loop thread: the image will be needed. Again: nothing.
  void StartLoading();
  // Loop thread: calls back on the loop when the image is known, never from inside.
  void WhenLoaded(absl::AnyInvocable<void(const Result&)> done);
  // Any other thread, after StartLoading: waits for it.
  const Result& Wait() const { return future_.get(); }

 private:
  loop::Loop& loop_;
  const std::string path_;
  bool started_ = false;
  std::promise<Result> promise_;
  std::shared_future<Result> future_ = promise_.get_future().share();
  loop::BlockingPool pool_{1};
};

}  // namespace dtrain::transport
