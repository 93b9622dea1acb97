// SPDX-License-Identifier: Apache-2.0
#include "common/http/server.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <cerrno>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"
#include "common/http/connection.h"
#include "common/log/log.h"
#include "common/os/fd.h"

namespace dtrain::http {
namespace {

namespace asio = boost::asio;
using Error = boost::system::error_code;
using Unix = asio::local::stream_protocol;
using Tcp = asio::ip::tcp;

constexpr char kYoungEnd[] = ".new";
constexpr size_t kTokenBytes = 32;
// After accept failed for want of descriptors.
constexpr Duration kBreath = std::chrono::milliseconds(100);

absl::Status StatusOf(const Error& error, absl::string_view what) {
  return PosixError(error.value(), what);
}

AsyncHandler AtOnce(Handler handler) {
  return [handler = std::move(handler)](const Target& target, Reply reply) mutable {
    reply(handler(target));
  };
}

bool IsOursOrRoots(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  return peer.uid == geteuid() || peer.uid == 0;
}

}  // namespace

struct Server::Shared {
  Shared(loop::Loop& l, AsyncHandler h, Limits lim)
      : loop(l),
        handler(std::make_shared<AsyncHandler>(std::move(h))),
        limits(lim),
        breath(l),
        tell(l) {}

  template <typename Protocol>
  void Accept(asio::basic_socket_acceptor<Protocol>& acceptor) {
    acceptor.async_accept(
        [this, &acceptor, alive = alive](Error error, typename Protocol::socket socket) mutable {
          if (!*alive) return;
          if (!error) Admit(StreamSocket(std::move(socket)));
          const bool starved = error == asio::error::no_descriptors || error.value() == ENFILE ||
                               error == asio::error::no_memory;
          if (starved) {
            breath.After(kBreath, [this, &acceptor] { Accept(acceptor); });
          } else {
            Accept(acceptor);
          }
        });
  }

  void Admit(StreamSocket socket) {
    const bool stranger = unix_acceptor.has_value() && !IsOursOrRoots(socket.native_handle());
    if (stranger && !std::exchange(warned, true)) {
      log::Warn("a process of another user was refused on the status socket");
    }
    if (stranger || connections.size() >= limits.connections) {
      Error ignored;
      const loop::StrangersSocket closed{os::UniqueFd(socket.release(ignored))};
      return;
    }
    Serve(std::move(socket), access, handler, "", nullptr);
  }

  void Serve(StreamSocket socket, Access may, std::shared_ptr<AsyncHandler> with,
             const std::string& origin, loop::Task on_over) {
    Connection::Callbacks callbacks;
    callbacks.on_answered = [this, alive = alive] {
      if (*alive) CheckIdle();
    };
    callbacks.on_wrong_token = [this, alive = alive] {
      if (*alive) OnWrongToken();
    };
    callbacks.on_over = [this, alive = alive, on_over = std::move(on_over)](
                            const std::shared_ptr<Connection>& over) mutable {
      if (on_over != nullptr) on_over();
      if (!*alive) return;
      connections.erase(over);
      CheckIdle();
    };
    auto connection = std::make_shared<Connection>(loop, std::move(socket), std::move(may), limits,
                                                   std::move(with), std::move(callbacks));
    connections[connection] = origin;
    connection->Start();
  }

  void OnWrongToken() {
    ++wrong_tokens;
    if (!telling) TellWrongTokens();
  }

  // At once, and then once in a while, as long as there are more.
  void TellWrongTokens() {
    telling = wrong_tokens > 0;
    if (!telling) return;
    log::Warn(absl::StrCat("refused HTTP with a wrong token: ",
                           Count(std::exchange(wrong_tokens, 0), "request")));
    tell.After(limits.tell_again, [this] { TellWrongTokens(); });
  }

  void CheckIdle() {
    for (const auto& [connection, origin] : connections) {
      if (connection->busy()) return;
    }
    if (when_idle != nullptr) std::exchange(when_idle, nullptr)();
  }

  loop::Loop& loop;
  std::shared_ptr<AsyncHandler> handler;
  const Limits limits;
  Access access;
  std::optional<asio::basic_socket_acceptor<Unix>> unix_acceptor;
  std::optional<asio::basic_socket_acceptor<Tcp>> tcp_acceptor;
  std::map<std::shared_ptr<Connection>, std::string> connections;  // with their origins
  loop::Timer breath;
  loop::Task when_idle;
  bool warned = false;
  size_t wrong_tokens = 0;  // not told yet
  bool telling = false;     // `tell` is set
  loop::Timer tell;
  std::shared_ptr<bool> alive = std::make_shared<bool>(true);
};

Server::Server(std::unique_ptr<Shared> shared, std::string address)
    : shared_(std::move(shared)), address_(std::move(address)) {}

Server::~Server() {
  *shared_->alive = false;
  const auto connections = shared_->connections;
  for (const auto& [connection, origin] : connections) connection->Close();
  if (shared_->unix_acceptor.has_value()) unlink(address_.c_str());
}

void Server::WhenIdle(loop::Task task) {
  shared_->when_idle = std::move(task);
  shared_->CheckIdle();
}

std::unique_ptr<Server> Server::MakeWithoutDoor(loop::Loop& loop, Limits limits) {
  return std::unique_ptr<Server>(
      new Server(std::make_unique<Shared>(loop, AsyncHandler(), limits), ""));
}

bool Server::Admit(loop::StrangersSocket socket, const std::string& origin,
                   std::vector<std::string> hosts, AsyncHandler handler, bool is_kept,
                   loop::Task on_over) {
  const auto of_one =
      static_cast<size_t>(std::count_if(shared_->connections.begin(), shared_->connections.end(),
                                        [&](const auto& each) { return each.second == origin; }));
  const Limits& limits = shared_->limits;
  const size_t most =
      limits.connections - (is_kept ? 0 : std::min(limits.kept, limits.connections));
  if (of_one >= limits.of_one || shared_->connections.size() >= most) return false;
  Error error;
  StreamSocket stream(shared_->loop.context());
  // Of whatever family: nothing asks for it.
  stream.assign(asio::generic::stream_protocol(AF_UNIX, 0), socket.get(), error);
  if (error) return false;
  (void)socket.Release().Release();
  Access access;
  access.hosts = std::move(hosts);
  shared_->Serve(std::move(stream), std::move(access),
                 std::make_shared<AsyncHandler>(std::move(handler)), origin, std::move(on_over));
  return true;
}

absl::StatusOr<Listening> ParseListening(const std::string& where) {
  Listening out;
  const size_t colon = where.rfind(':');
  out.ip = colon == where.npos ? "127.0.0.1" : where.substr(0, colon);
  if (out.ip.size() > 2 && out.ip.front() == '[' && out.ip.back() == ']') {
    out.ip = out.ip.substr(1, out.ip.size() - 2);
  }
  uint32_t port = 0;
  if (!absl::SimpleAtoi(where.substr(colon == where.npos ? 0 : colon + 1), &port) || port > 65535) {
    return absl::InvalidArgumentError("write it as PORT or 127.0.0.1:PORT");
  }
  out.port = static_cast<uint16_t>(port);
  return out;
}

absl::StatusOr<std::string> WriteToken(const std::string& path) {
  os::UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd) return PosixError(errno, absl::StrCat("make ", path));
  std::string token = os::RandomHex(kTokenBytes);
  const std::string line = token + "\n";
  if (write(fd.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    return PosixError(errno, absl::StrCat("write ", path));
  }
  return token;
}

absl::StatusOr<std::unique_ptr<Server>> Server::ListenUnix(loop::Loop& loop, std::string path,
                                                           Handler handler, Limits limits) {
  return Listen(loop, std::move(path), AtOnce(std::move(handler)), limits);
}

absl::StatusOr<std::unique_ptr<Server>> Server::Listen(loop::Loop& loop, std::string path,
                                                       AsyncHandler handler, Limits limits) {
  sockaddr_un name;
  constexpr size_t kRoom = sizeof(name.sun_path) - sizeof(kYoungEnd);
  if (path.size() > kRoom) {
    return absl::InvalidArgumentError(absl::StrCat("the path of the socket ", path, " has ",
                                                   path.size(), " bytes; there is room for ",
                                                   kRoom));
  }
  auto shared = std::make_unique<Shared>(loop, std::move(handler), limits);
  auto& acceptor = shared->unix_acceptor.emplace(loop.context());
  Error error;
  acceptor.open(Unix(), error);
  // Before it has a name: nobody may connect in between.
  if (!error && fchmod(acceptor.native_handle(), 0600) != 0) error.assign(errno, error.category());
  // Under another name until it listens: who finds a socket on which nobody does may remove it.
  const std::string young = path + kYoungEnd;
  if (!error) acceptor.bind(Unix::endpoint(young), error);
  if (error) return StatusOf(error, absl::StrCat("make the socket ", young));
  acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (!error && ::link(young.c_str(), path.c_str()) != 0) error.assign(errno, error.category());
  unlink(young.c_str());
  if (error) return StatusOf(error, absl::StrCat("listen on ", path));
  shared->Accept(acceptor);
  return std::unique_ptr<Server>(new Server(std::move(shared), std::move(path)));
}

absl::StatusOr<std::unique_ptr<Server>> Server::ListenUnixForPosts(loop::Loop& loop,
                                                                   std::string path,
                                                                   AsyncHandler handler,
                                                                   Limits limits) {
  auto server = Listen(loop, std::move(path), std::move(handler), limits);
  if (server.ok()) (*server)->shared_->access.may_post = true;
  return server;
}

absl::StatusOr<std::unique_ptr<Server>> Server::ListenTcp(loop::Loop& loop, const std::string& ip,
                                                          uint16_t port, std::string token,
                                                          Handler handler, Limits limits) {
  return ListenTcp(loop, ip, port, std::move(token), AtOnce(std::move(handler)), limits);
}

absl::StatusOr<std::unique_ptr<Server>> Server::ListenTcp(loop::Loop& loop, const std::string& ip,
                                                          uint16_t port, std::string token,
                                                          AsyncHandler handler, Limits limits) {
  Error error;
  const asio::ip::address address = asio::ip::make_address(ip, error);
  if (error) {
    return absl::InvalidArgumentError(absl::StrCat("\"", ip, "\" is not a numeric IP address"));
  }
  if (!address.is_loopback()) {
    return absl::InvalidArgumentError(
        absl::StrCat(ip, " is not a loopback address; over a network, forward a port: ssh -L"));
  }
  auto shared = std::make_unique<Shared>(loop, std::move(handler), limits);
  shared->access.token = std::move(token);
  shared->access.ask_for_token = true;
  shared->access.hosts = {"localhost", "127.0.0.1", "::1"};
  auto& acceptor = shared->tcp_acceptor.emplace(loop.context());
  Tcp::endpoint endpoint(address, port);
  const std::string shown =
      absl::StrCat(address.is_v6() ? absl::StrCat("[", ip, "]") : ip, ":", port);
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (!error) endpoint = acceptor.local_endpoint(error);
  if (error) return StatusOf(error, absl::StrCat("listen on ", shown));
  shared->Accept(acceptor);
  return std::unique_ptr<Server>(new Server(
      std::move(shared), absl::StrCat(shown.substr(0, shown.rfind(':')), ":", endpoint.port())));
}

}  // namespace dtrain::http
