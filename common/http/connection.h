// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/http/message.h"
#include "common/http/server.h"
#include "common/loop/loop.h"

namespace dtrain::http {

using StreamSocket = boost::asio::generic::stream_protocol::socket;

struct Access {
  bool ask_for_token = false;
  std::string token;
  std::vector<std::string> hosts;  // names and addresses of ours that Host may name; empty: any
  bool may_post = false;
};

// One client: reads requests one after the other and answers each before the next. Loop thread.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  struct Callbacks {
    absl::AnyInvocable<void()> on_answered;
    absl::AnyInvocable<void()> on_wrong_token;
    absl::AnyInvocable<void(const std::shared_ptr<Connection>&)> on_over;
  };

  // `limits` outlive it, or Close was called.
  Connection(loop::Loop& loop, StreamSocket socket, Access access, const Limits& limits,
             std::shared_ptr<AsyncHandler> handler, Callbacks callbacks);
  void Start() { Read(); }
  void Close();
  // Between a request and the end of its answer.
  bool busy() const { return busy_; }

 private:
  using Error = boost::system::error_code;
  using Parser = boost::beast::http::request_parser<boost::beast::http::empty_body>;

  void Read();
  void Parse();
  ssize_t Receive();
  void OnHeader(Error error);
  // Why the request is not for us; nullopt when it may be answered.
  std::optional<Response> Refuse(const Target& target);
  bool TokenIsRight();
  void Answer();
  void Send(Response response, bool keep_alive);
  template <typename Body>
  void SetHeader(const Response& response, boost::beast::http::response<Body>& message);
  void OnSent(Error error);
  void StartFeed(Response response);
  void SendPiece(Error error);
  void WatchPeer();
  void AllowTimeToTake();

  const Access access_;
  const Limits& limits_;
  const std::shared_ptr<AsyncHandler> handler_;
  Callbacks callbacks_;
  StreamSocket socket_;
  loop::Timer timer_;
  boost::beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  std::unique_ptr<Feed> feed_;
  bool framed_ = false;  // the feed goes out in chunks
  bool keep_alive_ = false;
  bool wrong_token_ = false;
  bool busy_ = false;
  bool watching_ = false;  // the peer, while a feed goes out
  bool closed_ = false;
};

}  // namespace dtrain::http
