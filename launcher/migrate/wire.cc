// SPDX-License-Identifier: Apache-2.0
#include "launcher/migrate/wire.h"

#include <google/protobuf/message_lite.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"

namespace dtrain::migrate {
namespace {

constexpr absl::string_view kHello =
    "\x01"
    "dtrain migrates 1\n";
constexpr absl::string_view kAnyHello =
    "\x01"
    "dtrain migrates ";
// Before that, from a login shell.
constexpr size_t kMostNoise = 64 << 10;
// A command line with the hostfile that it names, and an environment.
constexpr uint32_t kMostMessage = 64 << 20;
// A signal may come just before a poll.
constexpr int kLongestPollMs = 200;

}  // namespace

absl::Status Wire::WaitFor(int fd, short events, TimePoint deadline) const {
  for (;;) {
    if (interrupted_ != nullptr && *interrupted_ != 0) return absl::CancelledError("interrupted");
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return absl::DeadlineExceededError("no answer in time");
    pollfd ready{fd, events, 0};
    const int n = poll(&ready, 1, static_cast<int>(std::min<int64_t>(left, kLongestPollMs)));
    if (n > 0) return absl::OkStatus();
    if (n < 0 && errno != EINTR) return PosixError(errno, "poll");
  }
}

absl::Status Wire::Write(absl::string_view bytes, TimePoint deadline) {
  while (!bytes.empty()) {
    if (absl::Status ready = WaitFor(out_, POLLOUT, deadline); !ready.ok()) return ready;
    const ssize_t n = write(out_, bytes.data(), bytes.size());
    if (n > 0) bytes.remove_prefix(static_cast<size_t>(n));
    if (n < 0 && errno != EAGAIN && errno != EINTR) {
      return absl::UnavailableError(PosixError(errno, "the connection").message());
    }
  }
  return absl::OkStatus();
}

absl::Status Wire::ReadExactly(size_t size, TimePoint deadline, std::string& bytes) {
  bytes.clear();
  char buffer[64 << 10];
  while (bytes.size() < size) {
    if (absl::Status ready = WaitFor(in_, POLLIN, deadline); !ready.ok()) return ready;
    const ssize_t n = read(in_, buffer, std::min(sizeof(buffer), size - bytes.size()));
    if (n > 0) bytes.append(buffer, static_cast<size_t>(n));
    if (n == 0) return absl::UnavailableError("the connection has ended");
    if (n < 0 && errno != EAGAIN && errno != EINTR) {
      return absl::UnavailableError(PosixError(errno, "the connection").message());
    }
  }
  return absl::OkStatus();
}

absl::Status Wire::SendHello(TimePoint deadline) { return Write(kHello, deadline); }

absl::Status Wire::AwaitHello(TimePoint deadline) {
  std::string seen;
  std::string byte;
  while (seen.size() < kMostNoise) {
    if (absl::Status read = ReadExactly(1, deadline, byte); !read.ok()) return read;
    seen += byte;
    if (byte != "\n") continue;
    if (absl::EndsWith(seen, kHello)) return absl::OkStatus();
    const size_t at = seen.rfind(std::string(kAnyHello));
    if (at != std::string::npos) {
      return absl::FailedPreconditionError(
          absl::StrCat("another version of dtrain is installed there (\"",
                       Escape(seen.substr(at + 1)), "\"): install the same one on both machines"));
    }
  }
  return absl::FailedPreconditionError("the program that answers there is not dtrain");
}

absl::Status Wire::Send(const google::protobuf::MessageLite& message, TimePoint deadline) {
  const std::string bytes = message.SerializeAsString();
  if (bytes.size() > kMostMessage) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a message of ", bytes.size(), " bytes is too long"));
  }
  std::string frame;
  for (int shift = 24; shift >= 0; shift -= 8) {
    frame += static_cast<char>((bytes.size() >> shift) & 0xff);
  }
  return Write(absl::StrCat(frame, bytes), deadline);
}

absl::Status Wire::Receive(google::protobuf::MessageLite& message, TimePoint deadline) {
  std::string bytes;
  if (absl::Status read = ReadExactly(4, deadline, bytes); !read.ok()) return read;
  uint32_t size = 0;
  for (const char c : bytes) size = size << 8 | static_cast<unsigned char>(c);
  if (size > kMostMessage)
    return absl::InvalidArgumentError("the other end sent something that is no message");
  if (absl::Status read = ReadExactly(size, deadline, bytes); !read.ok()) return read;
  if (message.ParseFromString(bytes)) return absl::OkStatus();
  return absl::InvalidArgumentError("the other end sent something that is no message");
}

}  // namespace dtrain::migrate
