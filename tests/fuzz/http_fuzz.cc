// SPDX-License-Identifier: Apache-2.0
// The first byte says whether a token is asked for; the rest is what a client sends before it hangs
// up.
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "common/http/connection.h"
#include "common/os/fd.h"
#include "tests/fuzz/expect.h"

namespace http = dtrain::http;

namespace {

http::Response Answer(const http::Target& target) {
  DTRAIN_CHECK(absl::StartsWith(target.path, "/"));
  DTRAIN_CHECK(!absl::StrContains(target.path, "/../"));
  DTRAIN_CHECK(!absl::EndsWith(target.path, "/.."));
  for (char c : target.path) DTRAIN_CHECK(static_cast<unsigned char>(c) >= ' ');
  http::Response response;
  response.body = target.path;
  return response;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // More would not fit into the socket, and a header may have 8 KiB.
  if (size == 0 || size > 60000) return 0;
  dtrain::loop::Loop loop;
  auto pair = dtrain::os::SocketPair();
  DTRAIN_CHECK(pair.ok());
  http::StreamSocket socket(loop.context());
  socket.assign(boost::asio::generic::stream_protocol(AF_UNIX, 0), pair->first.Release());
  http::Access access;
  access.ask_for_token = data[0] % 2 == 1;
  access.token = "secret";
  if (access.ask_for_token) access.hosts = {"localhost", "127.0.0.1", "::1"};
  http::Limits limits;
  limits.wrong_token = std::chrono::milliseconds(0);
  auto handler = std::make_shared<http::AsyncHandler>(
      [](const http::Target& target, http::Reply reply) { reply(Answer(target)); });
  bool over = false;
  http::Connection::Callbacks callbacks;
  callbacks.on_answered = [] {};
  callbacks.on_wrong_token = [] {};
  callbacks.on_over = [&over](const std::shared_ptr<http::Connection>&) { over = true; };
  auto connection = std::make_shared<http::Connection>(loop, std::move(socket), access, limits,
                                                       handler, std::move(callbacks));
  connection->Start();
  const int peer = pair->second.get();
  if (size > 1) {
    DTRAIN_CHECK(send(peer, data + 1, size - 1, MSG_NOSIGNAL) == static_cast<ssize_t>(size - 1));
  }
  shutdown(peer, SHUT_WR);
  std::string answers;
  while (!over) {
    // Nothing is awaited but what has been sent, and the reading below.
    loop.context().run_one_for(std::chrono::milliseconds(1));
    char buffer[65536];
    const ssize_t n = recv(peer, buffer, sizeof(buffer), MSG_DONTWAIT);
    if (n > 0) answers.append(buffer, static_cast<size_t>(n));
  }
  DTRAIN_CHECK(answers.empty() || absl::StartsWith(answers, "HTTP/1."));
  return 0;
}
