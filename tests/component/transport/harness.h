// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/loop/loop.h"
#include "common/os/fd.h"
#include "common/os/process_tree.h"
#include "launcher/transport/agent_binary.h"
#include "launcher/transport/transport.h"

namespace dtrain::transport {

// A directory that goes away with the test.
class TempDir {
 public:
  TempDir() {
    char name[] = "/tmp/dtrain-transport-XXXXXX";
    path_ = mkdtemp(name);
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline void WriteFile(const std::string& path, const std::string& text, mode_t mode = 0600) {
  std::ofstream(path, std::ios::binary) << text;
  chmod(path.c_str(), mode);
}

inline std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// An agent that answers, then echoes: what gRPC would be in its place.
inline std::string EchoAgent(const std::string& first = "") {
  return absl::StrCat("#!/bin/sh\n", first, "\n[ \"$1\" = bridge ] || exit 9\n",
                      "if [ \"$2\" = --socket ]; then exec >&0; fi\n",
                      "echo 'DTRAIN-AGENT/1 ready pid='$$\nexec cat\n");
}

inline constexpr std::chrono::seconds kDeadline{20};

// One connection and what its callbacks told.
struct Probe {
  std::vector<Phase> phases;
  std::optional<absl::Status> failed;
  os::UniqueFd stream;
  std::unique_ptr<Connection> connection;

  Callbacks callbacks() {
    Callbacks c;
    c.on_phase = [this](Phase phase) { phases.push_back(phase); };
    c.on_ready = [this](os::UniqueFd fd) { stream = std::move(fd); };
    c.on_failed = [this](absl::Status status) { failed = std::move(status); };
    return c;
  }
  bool done() const { return failed || stream; }
  std::string error() const { return failed ? std::string(failed->message()) : "no failure"; }
};

class TransportTest : public testing::Test {
 protected:
  // Runs the loop until `condition` holds; false when it did not in time.
  template <typename Condition>
  bool Await(Condition condition) {
    TimePoint deadline = Clock::now() + kDeadline;
    while (!condition()) {
      if (Clock::now() > deadline) return false;
      // Short, for conditions on other processes, of which the loop hears nothing.
      loop_.context().run_one_for(std::chrono::milliseconds(20));
    }
    return true;
  }

  // Writes `text` and expects it back.
  static testing::AssertionResult Echoes(int fd, const std::string& text) {
    size_t sent = 0;
    std::string got;
    TimePoint deadline = Clock::now() + kDeadline;
    while (got.size() < text.size()) {
      pollfd p{fd, static_cast<short>(POLLIN | (sent < text.size() ? POLLOUT : 0)), 0};
      if (Clock::now() > deadline || poll(&p, 1, 1000) < 0) {
        return testing::AssertionFailure() << "only " << got.size() << " bytes came back";
      }
      if ((p.revents & POLLOUT) != 0) {
        ssize_t n = send(fd, text.data() + sent, text.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0) sent += static_cast<size_t>(n);
      }
      char buffer[65536];
      ssize_t n = recv(fd, buffer, sizeof(buffer), MSG_DONTWAIT);
      if (n == 0 || (n < 0 && errno != EAGAIN)) {
        return testing::AssertionFailure() << "ended after " << got.size() << " bytes";
      }
      if (n > 0) got.append(buffer, static_cast<size_t>(n));
    }
    return got == text ? testing::AssertionSuccess() : testing::AssertionFailure() << "altered";
  }

  // True when the other end closes in time.
  static bool Ends(int fd) {
    TimePoint deadline = Clock::now() + kDeadline;
    while (Clock::now() < deadline) {
      pollfd p{fd, POLLIN, 0};
      poll(&p, 1, 1000);
      char buffer[65536];
      ssize_t n = recv(fd, buffer, sizeof(buffer), MSG_DONTWAIT);
      if (n == 0 || (n < 0 && errno != EAGAIN)) return true;
    }
    return false;
  }

  static std::string Blob(size_t size) {
    std::string out(size, '\0');
    uint32_t x = 12345;
    for (char& c : out) c = static_cast<char>((x = x * 1664525 + 1013904223) >> 24);
    return out;
  }

  TempDir dir_;
  loop::Loop loop_;
};

// Whether a process of that number is there (a zombie is one).
inline bool ProcessExists(pid_t pid) {
  return std::filesystem::exists(absl::StrCat("/proc/", pid));
}

// Whether it still does something: a zombie that its new parent has not reaped does not.
inline bool ProcessRuns(pid_t pid) {
  const auto process = os::FindProcess(pid);
  return process && process->state != 'Z';
}

}  // namespace dtrain::transport
