// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <memory>

#include "agent/stores/horovod_store.h"
#include "agent/stores/server.h"
#include "common/loop/loop.h"

namespace dtrain::stores {

// One request of a Horovod rank, and its answer: clients make a connection for each. Loop thread.
class HttpSession : public std::enable_shared_from_this<HttpSession> {
 public:
  // `store` outlives it, or Close was called. `on_over` is called once, when it is closed.
  HttpSession(loop::Loop& loop, StreamSocket socket, HorovodStore& store, loop::Task on_over);
  void Start();
  void Close();

 private:
  using Error = boost::system::error_code;
  void OnRead(Error error);
  void Send(HorovodStore::Reply reply);
  void AwaitEnd();

  HorovodStore& store_;
  loop::Task on_over_;
  StreamSocket socket_;
  loop::Timer timer_;
  boost::beast::flat_buffer buffer_;
  boost::beast::http::request_parser<boost::beast::http::string_body> parser_;
  bool too_late_ = false;
  bool closed_ = false;
};

}  // namespace dtrain::stores
