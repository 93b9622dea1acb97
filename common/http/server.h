// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/http/message.h"
#include "common/loop/loop.h"
#include "common/loop/stray_descriptors.h"

namespace dtrain::http {

// What strangers may take of us.
struct Limits {
  size_t connections = 128;                      // more are closed as they come
  size_t kept = 8;                               // of them, for those whom Admit calls so
  size_t of_one = 32;                            // of one origin that Admit was told
  Duration request = std::chrono::seconds(10);   // until a request's header is there, idle included
  Duration response = std::chrono::seconds(30);  // until the peer has taken a piece of an answer
  Duration wrong_token = std::chrono::seconds(1);  // before a wrong token is answered
  Duration tell_again = std::chrono::minutes(1);   // between two lines about wrong tokens
};

// Of PORT, IP:PORT or [IP]:PORT; without an IP 127.0.0.1.
struct Listening {
  std::string ip;
  uint16_t port = 0;
};
absl::StatusOr<Listening> ParseListening(const std::string& where);

// Makes the file, for nobody else to read, with a new token in it, which is returned.
absl::StatusOr<std::string> WriteToken(const std::string& path);

// A small HTTP/1.1 server that only answers GET and HEAD, and on a unix socket POST without a body
// where its handler wants it. Who may ask: on a unix socket, processes
// of our own user and of root, as the kernel tells; on TCP, which binds loopback addresses only,
// who sends the token (`Authorization: Bearer ...`) for all but / and /healthz, and names a
// loopback host. A request with an Origin, or of which a browser says that another site's page
// makes it, is refused. Loop thread.
class Server {
 public:
  // `path` must not exist, is made with mode 0600, and removed by the destructor.
  static absl::StatusOr<std::unique_ptr<Server>> ListenUnix(loop::Loop& loop, std::string path,
                                                            Handler handler, Limits limits = {});
  // The handler is asked with Target::is_post, too.
  static absl::StatusOr<std::unique_ptr<Server>> ListenUnixForPosts(loop::Loop& loop,
                                                                    std::string path,
                                                                    AsyncHandler handler,
                                                                    Limits limits = {});
  // `ip` must be a loopback address; port 0 takes a free one.
  static absl::StatusOr<std::unique_ptr<Server>> ListenTcp(loop::Loop& loop, const std::string& ip,
                                                           uint16_t port, std::string token,
                                                           AsyncHandler handler,
                                                           Limits limits = {});
  static absl::StatusOr<std::unique_ptr<Server>> ListenTcp(loop::Loop& loop, const std::string& ip,
                                                           uint16_t port, std::string token,
                                                           Handler handler, Limits limits = {});
  // Without a door of its own: who calls Admit has accepted the connection and knows its peer.
  static std::unique_ptr<Server> MakeWithoutDoor(loop::Loop& loop, Limits limits = {});
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // False when there are too many, in all or of this origin; the socket is closed then. `hosts`:
  // names and numeric addresses of ours, one of which Host must name; empty: whatever. The handler
  // is this connection's own; some places are kept for those that `is_kept` says; `on_over`, which
  // may be null, is called when it is closed.
  bool Admit(loop::StrangersSocket socket, const std::string& origin,
             std::vector<std::string> hosts, AsyncHandler handler, bool is_kept = false,
             loop::Task on_over = nullptr);

  // "127.0.0.1:8080", or the path of the socket.
  const std::string& address() const { return address_; }
  // Calls `task` once, when no answer is on its way (any more).
  void WhenIdle(loop::Task task);

 private:
  struct Shared;
  static absl::StatusOr<std::unique_ptr<Server>> Listen(loop::Loop& loop, std::string path,
                                                        AsyncHandler handler, Limits limits);
  Server(std::unique_ptr<Shared> shared, std::string address);
  std::unique_ptr<Shared> shared_;
  const std::string address_;
};

}  // namespace dtrain::http
