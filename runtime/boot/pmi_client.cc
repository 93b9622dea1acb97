// SPDX-License-Identifier: Apache-2.0
#include "runtime/boot/pmi_client.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

namespace dtrain::runtime {
namespace {

constexpr size_t kLongestLine = 1024;  // with its newline, in PMI-1
// "cmd=put kvsname= key= value=\n" and its counterpart in the answer to a get, rounded up.
constexpr size_t kPutOverhead = 40;
// Fewer would mean thousands of round trips; no server announces that.
constexpr size_t kSmallestValueLimit = 64;
constexpr int64_t kLookMs = 50;
// Requests under way at a time: they and their answers fit the buffers of both ends.
constexpr size_t kAhead = 32;

Error Lost(std::string_view request, const std::string& why) {
  return {DTRAIN_ERROR_LAUNCHER, "the launcher's PMI connection failed during '" +
                                     Printable(request.substr(0, request.find(' '))) + "': " + why};
}

std::optional<size_t> NumberField(std::string_view line, std::string_view key) {
  const auto text = PmiField(line, key);
  size_t number = 0;
  if (!text) return std::nullopt;
  const char* end = text->data() + text->size();
  const auto [rest, error] = std::from_chars(text->data(), end, number);
  if (error != std::errc() || rest != end) return std::nullopt;
  return number;
}

}  // namespace

std::optional<std::string_view> PmiField(std::string_view line, std::string_view key) {
  while (!line.empty()) {
    const std::string_view pair = line.substr(0, line.find(' '));
    if (pair.size() > key.size() && pair.starts_with(key) && pair[key.size()] == '=') {
      return pair.substr(key.size() + 1);
    }
    line.remove_prefix(std::min(line.size(), pair.size() + 1));
  }
  return std::nullopt;
}

PmiClient::PmiClient(PmiClient&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      kvs_name_(std::move(other.kvs_name_)),
      value_limit_(other.value_limit_),
      can_rejoin_(other.can_rejoin_),
      received_(std::move(other.received_)) {}

PmiClient& PmiClient::operator=(PmiClient&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(kvs_name_, other.kvs_name_);
  std::swap(value_limit_, other.value_limit_);
  std::swap(can_rejoin_, other.can_rejoin_);
  std::swap(received_, other.received_);
  return *this;
}

PmiClient::~PmiClient() {
  if (fd_ >= 0) close(fd_);
}

Result<PmiClient> PmiClient::Connect(int fd, Deadline deadline) {
  // Programs that the worker starts must not hold the socket open: its end is how the launcher
  // learns that the worker is gone.
  if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
    return Error{DTRAIN_ERROR_ENVIRONMENT,
                 "PMI_FD=" + std::to_string(fd) +
                     " is not an open descriptor; only the process that the launcher itself "
                     "started has it, and a wrapper script must keep it open"};
  }
  PmiClient client(fd);
  if (MaybeError error = client.Greet(deadline)) return *error;
  return client;
}

MaybeError PmiClient::Greet(Deadline deadline) {
  auto reply = Ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init", deadline);
  if (!reply.ok()) return reply.error();
  reply = Ask("cmd=get_maxes", "maxes", deadline);
  if (!reply.ok()) return reply.error();
  const auto name_max = NumberField(*reply, "kvsname_max");
  const auto key_max = NumberField(*reply, "keylen_max");
  const auto value_max = NumberField(*reply, "vallen_max");
  if (!name_max || !key_max || !value_max ||
      *name_max + *key_max + kPutOverhead + kSmallestValueLimit > kLongestLine ||
      *value_max <= kSmallestValueLimit) {
    return Lost("cmd=get_maxes", "unusable limits: " + Printable(*reply));
  }
  const size_t room = kLongestLine - *name_max - *key_max - kPutOverhead;
  value_limit_ = std::min(room, *value_max - 1);  // the server may count the final zero byte

  reply = Ask("cmd=get_my_kvsname", "my_kvsname", deadline);
  if (!reply.ok()) return reply.error();
  const auto name = PmiField(*reply, "kvsname");
  if (!name || name->empty() || name->size() > *name_max) {
    return Lost("cmd=get_my_kvsname", "no usable name in: " + Printable(*reply));
  }
  kvs_name_ = *name;
  const auto rejoin = Get("dtrain_rejoin", deadline);
  if (!rejoin.ok()) return rejoin.error();
  can_rejoin_ = *rejoin == "1";
  return std::nullopt;
}

MaybeError PmiClient::Put(std::string_view key, std::string_view value, Deadline deadline) {
  const std::string request =
      "cmd=put kvsname=" + kvs_name_ + " key=" + std::string(key) + " value=" + std::string(value);
  const auto reply = Ask(request, "put_result", deadline);
  if (!reply.ok()) return reply.error();
  return std::nullopt;
}

Result<std::optional<std::string>> PmiClient::Get(std::string_view key, Deadline deadline) {
  const std::string request = "cmd=get kvsname=" + kvs_name_ + " key=" + std::string(key);
  if (MaybeError error = Send(request, deadline)) return *error;
  return ReceiveValue(request, deadline);
}

Result<std::vector<std::optional<std::string>>> PmiClient::GetAll(
    const std::vector<std::string>& keys, Deadline deadline) {
  const size_t ahead = can_rejoin_ ? kAhead : 1;
  std::vector<std::optional<std::string>> values;
  for (size_t at = 0; at < keys.size(); at += ahead) {
    const size_t end = std::min(at + ahead, keys.size());
    std::string requests;
    for (size_t i = at; i < end; ++i) {
      requests += "cmd=get kvsname=" + kvs_name_ + " key=" + keys[i] + "\n";
    }
    if (MaybeError error = SendBytes(requests, deadline)) return *error;
    for (size_t i = at; i < end; ++i) {
      auto value = ReceiveValue("cmd=get", deadline);
      if (!value.ok()) return value.error();
      values.push_back(std::move(*value));
    }
  }
  return values;
}

Result<std::optional<std::string>> PmiClient::ReceiveValue(const std::string& request,
                                                           Deadline deadline) {
  auto reply = Receive(request, deadline);
  if (!reply.ok()) return reply.error();
  const auto kind = PmiField(*reply, "cmd");
  if (kind != "get_result") return Lost(request, "unexpected answer: " + Printable(*reply));
  const auto value = PmiField(*reply, "value");
  if (PmiField(*reply, "rc") != "0" || !value) return std::optional<std::string>();
  return std::optional<std::string>(*value);
}

MaybeError PmiClient::Barrier(Deadline deadline, const Look& look) {
  look_ = look;
  const auto reply = Ask("cmd=barrier_in", "barrier_out", deadline);
  look_ = nullptr;
  if (!reply.ok()) return reply.error();
  return std::nullopt;
}

MaybeError PmiClient::Finalize(Deadline deadline) {
  const auto reply = Ask("cmd=finalize", "finalize_ack", deadline);
  if (!reply.ok()) return reply.error();
  if (!can_rejoin_) close(std::exchange(fd_, -1));
  return std::nullopt;
}

Result<std::string> PmiClient::Ask(const std::string& request, std::string_view reply,
                                   Deadline deadline) {
  if (MaybeError error = Send(request, deadline)) return *error;
  auto line = Receive(request, deadline);
  if (!line.ok()) return line.error();
  const auto code = PmiField(*line, "rc");
  if (PmiField(*line, "cmd") != reply || (code && *code != "0")) {
    return Lost(request, "unexpected answer: " + Printable(*line));
  }
  return line;
}

MaybeError PmiClient::Send(std::string_view line, Deadline deadline) {
  std::string bytes(line);
  bytes += '\n';
  if (bytes.size() > kLongestLine) {
    return Error{DTRAIN_ERROR_INTERNAL, "a PMI line of " + std::to_string(bytes.size()) + " bytes"};
  }
  return SendBytes(bytes, deadline);
}

MaybeError PmiClient::SendBytes(std::string_view bytes, Deadline deadline) {
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t n =
        send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      sent += static_cast<size_t>(n);
    } else if (errno == EAGAIN) {
      if (MaybeError error = WaitFor(POLLOUT, bytes, deadline)) return error;
    } else if (errno != EINTR) {
      return Lost(bytes, strerror(errno));
    }
  }
  return std::nullopt;
}

Result<std::string> PmiClient::Receive(std::string_view request, Deadline deadline) {
  for (;;) {
    const size_t end = received_.find('\n');
    if (end != std::string::npos) {
      std::string line = received_.substr(0, end);
      received_.erase(0, end + 1);
      return line;
    }
    if (received_.size() > kLongestLine) return Lost(request, "a line of more than 1024 bytes");
    char buffer[size_t{16} << 10];
    const ssize_t n = recv(fd_, buffer, sizeof(buffer), MSG_DONTWAIT);
    if (n > 0) {
      received_.append(buffer, static_cast<size_t>(n));
    } else if (n == 0) {
      return Lost(request, "the launcher closed it (is the job being stopped?)");
    } else if (errno == EAGAIN) {
      if (MaybeError error = WaitFor(POLLIN, request, deadline)) return *error;
    } else if (errno != EINTR) {
      return Lost(request, strerror(errno));
    }
  }
}

MaybeError PmiClient::WaitFor(short events, std::string_view what, Deadline deadline) {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) {
      const bool barrier = what.starts_with("cmd=barrier_in");
      return Error{DTRAIN_ERROR_TIMEOUT, barrier
                                             ? "not every rank has reached the barrier"
                                             : "the launcher did not answer '" +
                                                   Printable(what.substr(0, what.find(' '))) + "'"};
    }
    pollfd entry{fd_, events, 0};
    const int timeout =
        static_cast<int>(std::min<int64_t>(left.count(), look_ ? kLookMs : 1'000'000));
    const int n = poll(&entry, 1, timeout);
    if (n > 0) return std::nullopt;
    if (look_) {
      if (MaybeError error = look_()) return error;
    }
    if (n < 0 && errno != EINTR) return Lost(what, strerror(errno));
  }
}

}  // namespace dtrain::runtime
