// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>
#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"

namespace google::protobuf {
class MessageLite;
}

namespace dtrain::migrate {

inline TimePoint In(Duration time) { return Clock::now() + time; }

// Messages over the standard streams of an ssh: each is its length in four bytes, the highest
// first, and so many bytes. Before the first message each end writes a line of its own, behind
// whatever a login shell prints. Calls block until the deadline; UNAVAILABLE: the other end has
// gone. CANCELLED: `interrupted`, if there is one, was set.
class Wire {
 public:
  // Borrows the descriptors.
  Wire(int in, int out, const volatile std::sig_atomic_t* interrupted)
      : in_(in), out_(out), interrupted_(interrupted) {}

  absl::Status SendHello(TimePoint deadline);
  // FAILED_PRECONDITION: the other end speaks another version.
  absl::Status AwaitHello(TimePoint deadline);
  absl::Status Send(const google::protobuf::MessageLite& message, TimePoint deadline);
  absl::Status Receive(google::protobuf::MessageLite& message, TimePoint deadline);
  // From now on; null: nothing does.
  void InterruptBy(const volatile std::sig_atomic_t* interrupted) { interrupted_ = interrupted; }

 private:
  absl::Status WaitFor(int fd, short events, TimePoint deadline) const;
  absl::Status Write(absl::string_view bytes, TimePoint deadline);
  absl::Status ReadExactly(size_t size, TimePoint deadline, std::string& bytes);

  const int in_;
  const int out_;
  const volatile std::sig_atomic_t* interrupted_;
};

}  // namespace dtrain::migrate
