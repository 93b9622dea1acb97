// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "common/loop/loop.h"
#include "common/os/unique_fd.h"
#include "launcher/transport/agent_binary.h"
#include "launcher/transport/transport.h"

namespace dtrain::transport {

// What the thread of one ssh connection tells the loop.
class SshEvents {
 public:
  virtual ~SshEvents() = default;
  virtual void OnPhase(Phase phase) = 0;
  virtual void OnReached(std::string address) = 0;  // see Connection
  virtual void OnReady(os::UniqueFd stream) = 0;
  virtual void OnFailed(absl::Status status) = 0;
  virtual void OnNeedsOpenSsh(const std::string& why) = 0;
  virtual void OnClosed(absl::Status reason) = 0;  // after OnReady
};

// What the loop and that thread share. It outlives both.
class SshLink {
 public:
  explicit SshLink(loop::Loop& loop);
  ~SshLink();
  SshLink(const SshLink&) = delete;
  SshLink& operator=(const SshLink&) = delete;

  // Loop thread. The events go to `events` until it is null.
  void set_events(SshEvents* events) { events_ = events; }
  // Loop thread: the connection is not wanted any more. Waits that can be called off are.
  void Cancel();
  bool cancelled() const { return cancelled_; }
  // Any thread: what still blocks on the network ends now.
  void Sever();
  // Loop thread: the loop goes away; nothing is posted to it any more.
  void Abandon() { abandoned_ = true; }
  // Loop thread, at most once: whether the thread has ended by then.
  bool EndedBy(TimePoint deadline) {
    return ended_future_.wait_until(deadline) == std::future_status::ready;
  }

  // The other thread. An event is dropped when nobody waits for it, a task is not.
  static void Post(const std::shared_ptr<SshLink>& link,
                   absl::AnyInvocable<void(SshEvents&)> event);
  static void PostTask(const std::shared_ptr<SshLink>& link, loop::Task task);
  int cancel_fd() const { return cancel_.get(); }
  // False when there was no descriptor for it: there can be no connection then.
  bool ok() const { return static_cast<bool>(cancel_); }
  std::atomic<int>& socket() { return socket_; }
  void SetEnded() { ended_.set_value(); }

 private:
  loop::Loop& loop_;
  SshEvents* events_ = nullptr;  // loop thread
  bool cancelled_ = false;       // loop thread
  os::UniqueFd cancel_;          // an eventfd
  // A duplicate of the session's socket, whoever exchanges it out owns it: so none is shut down
  // that was closed and means something else by now.
  std::atomic<int> socket_{-1};
  std::atomic<bool> abandoned_{false};
  std::promise<void> ended_;
  std::future<void> ended_future_;
};

// A copy for another thread. Copies of a Status share a count that libabsl keeps, and that library
// is not built for ThreadSanitizer, which then sees a race.
inline absl::Status Unshared(const absl::Status& status) {
  absl::Status copy = IsUnknownHost(status) ? UnknownHostError(status.message())
                                            : absl::Status(status.code(), status.message());
  return PassingError(std::move(copy), WhatPasses(status));
}

}  // namespace dtrain::transport
