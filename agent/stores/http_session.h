// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstddef>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "agent/stores/horovod_store.h"
#include "agent/stores/server.h"
#include "common/loop/loop.h"

namespace dtrain::stores {

struct HttpRequest {
  std::string verb;
  std::string target;  // with the slash
  std::string body;
};

// What has the answers. Loop thread.
class HttpHandler {
 public:
  using Reply = absl::AnyInvocable<void(HorovodStore::Reply)>;
  virtual ~HttpHandler() = default;
  // Of a request, in bytes. With most_sessions of the server it bounds what strangers on the job's
  // other nodes can make us hold.
  virtual size_t most_body() const = 0;
  // `reply` is called once, now or later; it may be dropped after the client has gone. Returns what
  // to call when the client goes before it has its answer; null: it has it.
  virtual loop::Task Handle(HttpRequest request, Reply reply) = 0;
};

// One request of a Horovod rank, and its answer: clients make a connection for each, and wait for
// the answer as long as it takes. Loop thread.
class HttpSession : public std::enable_shared_from_this<HttpSession> {
 public:
  // `handler` outlives it, or Close was called. `on_over` is called once, when it is closed.
  HttpSession(loop::Loop& loop, StreamSocket socket, HttpHandler& handler, loop::Task on_over);
  void Start();
  void Close();

 private:
  using Error = boost::system::error_code;
  void OnRead(Error error);
  void Answer(HorovodStore::Reply reply);
  void WatchClient();
  void Send(HorovodStore::Reply reply);
  void AwaitEnd();

  loop::Loop& loop_;
  HttpHandler& handler_;
  loop::Task on_over_;
  StreamSocket socket_;
  loop::Timer timer_;
  boost::beast::flat_buffer buffer_;
  boost::beast::http::request_parser<boost::beast::http::string_body> parser_;
  loop::Task on_gone_;  // null: nothing is awaited for the client
  bool answered_ = false;
  bool too_late_ = false;
  bool closed_ = false;
};

}  // namespace dtrain::stores
