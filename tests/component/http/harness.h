// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/http/server.h"
#include "common/loop/loop.h"
#include "common/os/unique_fd.h"

namespace dtrain::http {

// A server on a unix socket, and clients that write what they like; all on one thread.
class HttpTest : public testing::Test {
 protected:
  static constexpr std::chrono::seconds kDeadline{30};

  HttpTest() {
    char name[] = "/tmp/dtrain-http-XXXXXX";
    dir_ = mkdtemp(name);
    path_ = dir_ + "/s";
  }
  ~HttpTest() override {
    server_.reset();
    std::filesystem::remove_all(dir_);
  }

  void Listen(Limits limits = {}) {
    auto server = Server::ListenUnix(
        loop_, path_, [this](const Target& target) { return Handle(target); }, limits);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  virtual Response Handle(const Target& target) {
    asked_.push_back(target.path);
    Response response;
    response.body = "you asked for " + target.path;
    return response;
  }

  template <typename Condition>
  bool Await(Condition condition) {
    const TimePoint deadline = Clock::now() + kDeadline;
    while (!condition()) {
      if (Clock::now() > deadline) return false;
      loop_.context().run_one_for(std::chrono::milliseconds(5));
    }
    return true;
  }

  os::UniqueFd Dial() {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::strncpy(name.sun_path, path_.c_str(), sizeof(name.sun_path) - 1);
    os::UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
    EXPECT_EQ(fcntl(fd.get(), F_SETFL, O_NONBLOCK), 0);
    return fd;
  }

  static void Write(const os::UniqueFd& fd, const std::string& bytes) {
    // A server that has seen enough may have closed it.
    const ssize_t n = send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    EXPECT_TRUE(n == static_cast<ssize_t>(bytes.size()) || errno == EPIPE || errno == ECONNRESET);
  }

  // Adds what has come; false at the end of the stream.
  static bool Read(const os::UniqueFd& fd, std::string& text) {
    char buffer[65536];
    const ssize_t n = recv(fd.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
    if (n > 0) text.append(buffer, static_cast<size_t>(n));
    return n > 0 || (n < 0 && errno == EAGAIN);
  }

  // What comes until the server closes.
  std::string ReadToEnd(const os::UniqueFd& fd) {
    std::string text;
    EXPECT_TRUE(Await([&] { return !Read(fd, text); })) << "not closed; came: " << text;
    return text;
  }

  // Sends, says that nothing more follows, and reads to the end.
  std::string Talk(const std::string& bytes) {
    os::UniqueFd fd = Dial();
    Write(fd, bytes);
    shutdown(fd.get(), SHUT_WR);
    return ReadToEnd(fd);
  }

  std::string dir_;
  std::string path_;
  loop::Loop loop_;
  std::vector<std::string> asked_;
  std::unique_ptr<Server> server_;
};

}  // namespace dtrain::http
