// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/loop/loop.h"
#include "common/os/fd.h"
#include "common/os/spawn.h"
#include "common/os/unique_fd.h"
#include "common/tls/stream.h"
#include "tests/component/tls/authority.h"

namespace dtrain::tls {

// One side of a connection, and what it was told.
struct End {
  std::unique_ptr<Stream> stream;
  std::optional<Ready> ready;
  std::optional<absl::Status> closed;

  Stream::Callbacks Callbacks() {
    return {[this](Ready r) { ready = std::move(r); },
            [this](absl::Status why) { closed = std::move(why); }};
  }
  int plain() const { return ready->plain.get(); }
  std::string why() const { return closed.has_value() ? std::string(closed->message()) : "open"; }
};

// Connections over loopback, all on one thread; peers are our own Stream or openssl's programs.
class StreamTest : public testing::Test {
 protected:
  static constexpr std::chrono::seconds kDeadline{60};

  StreamTest() {
    listener_.Reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address_);
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address_), size), 0);
    EXPECT_EQ(listen(listener_.get(), 16), 0);
    getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address_), &size);
  }
  ~StreamTest() override {
    for (os::Child& child : children_) {
      kill(child.pid, SIGKILL);
      waitpid(child.pid, nullptr, 0);
    }
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

  std::shared_ptr<const Context> Load(Side side, const Files& files) {
    auto context = Context::Load(side, files);
    EXPECT_TRUE(context.ok()) << context.status();
    return context.ok() ? *std::move(context) : nullptr;
  }
  std::shared_ptr<const Context> NodeContext() {
    return Load(Side::kServer, lab_.Node("gpu01", "--ip 127.0.0.1"));
  }
  std::shared_ptr<const Context> AliceContext() { return Load(Side::kClient, lab_.User("alice")); }

  int port() const { return ntohs(address_.sin_port); }
  os::UniqueFd Dial() {
    os::UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address_), sizeof(address_)), 0);
    return fd;
  }
  os::UniqueFd Answer() {
    pollfd waiting{listener_.get(), POLLIN, 0};
    EXPECT_EQ(poll(&waiting, 1, 60000), 1) << "nobody connects";
    return os::UniqueFd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  }

  void Serve(End& end, const Context& context, os::UniqueFd tcp, Limits limits = {}) {
    end.stream = Stream::Accept(loop_, context, std::move(tcp), end.Callbacks(), limits);
  }
  void Ask(End& end, const Context& context, os::UniqueFd tcp, absl::string_view name = "gpu01",
           Limits limits = {}) {
    end.stream =
        Stream::Connect(loop_, context, std::move(tcp), name, "h2", end.Callbacks(), limits);
  }
  // Both ends ours, as far as `client` and `server` get.
  void Join(const Context& client, const Context& server, absl::string_view name = "gpu01",
            Limits limits = {}) {
    os::UniqueFd dialled = Dial();
    Serve(server_, server, Answer(), limits);
    Ask(client_, client, std::move(dialled), name, limits);
    ASSERT_TRUE(Await(
        [&] { return (client_.ready || client_.closed) && (server_.ready || server_.closed); }));
  }
  bool BothClosed() {
    return Await([&] { return client_.closed.has_value() && server_.closed.has_value(); });
  }

  // `openssl s_client` or s_server with these arguments; it says what it says into `log`.
  void OpenSsl(const std::string& arguments) {
    const std::string command =
        absl::StrCat("exec openssl ", arguments, " <", directory_.path(), "/in >", log(), " 2>&1");
    Start(command);
  }
  void OpenSslClient(const Files& files, const std::string& more = "") {
    OpenSsl(absl::StrCat("s_client -connect 127.0.0.1:", port(), " -CAfile ", lab_.ca(),
                         files.certificate.empty() ? "" : " -cert " + files.certificate,
                         files.key.empty() ? "" : " -key " + files.key, " ", more));
  }
  void Start(const std::string& command) {
    // The reading end of a pipe that nobody ends: s_client goes on while its stdin is open.
    const std::string in = directory_.path() + "/in";
    if (!stdin_) {
      ASSERT_EQ(mkfifo(in.c_str(), 0600), 0);
      stdin_.Reset(open(in.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
    }
    os::SpawnSpec spec;
    spec.argv = {"/bin/sh", "-c", command};
    spec.env = {"PATH=/usr/bin:/bin"};
    auto child = os::Spawn(spec);
    ASSERT_TRUE(child.ok()) << child.status();
    children_.push_back(*std::move(child));
  }
  std::string log() const { return directory_.path() + "/log"; }

  // A server that is asked by `openssl s_client`, until it is ready or closed.
  void ServeOpenSsl(const std::shared_ptr<const Context>& context, const Files& files,
                    const std::string& more = "") {
    OpenSslClient(files, more);
    Serve(server_, *context, Answer());
    ASSERT_TRUE(Await([&] { return server_.ready || server_.closed; })) << Contents(log());
  }

  static bool Send(int fd, absl::string_view bytes) {
    return send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
           static_cast<ssize_t>(bytes.size());
  }
  // Adds what has come; false at the end of the stream.
  static bool Receive(int fd, std::string& text) {
    char buffer[65536];
    const ssize_t n = recv(fd, buffer, sizeof(buffer), MSG_DONTWAIT);
    if (n > 0) text.append(buffer, static_cast<size_t>(n));
    return n > 0 || (n < 0 && errno == EAGAIN);
  }
  bool AwaitText(int fd, absl::string_view wanted) {
    std::string text;
    return Await([&] {
      Receive(fd, text);
      return text == wanted;
    });
  }

  TemporaryDirectory directory_;
  Authority lab_{directory_.path()};
  os::UniqueFd listener_;
  sockaddr_in address_{};
  os::UniqueFd stdin_;
  std::vector<os::Child> children_;
  loop::Loop loop_;
  End client_;
  End server_;
};

}  // namespace dtrain::tls
