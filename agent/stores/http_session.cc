// SPDX-License-Identifier: Apache-2.0
#include "agent/stores/http_session.h"

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/write.hpp>
#include <string>
#include <utility>

namespace dtrain::stores {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;

constexpr size_t kMostHeader = 8 << 10;
// For a whole request, and for the client to take the answer and go.
constexpr Duration kPatience = std::chrono::seconds(3);
// Of what a client sends while it waits for its answer.
constexpr size_t kDroppedAtOnce = 64 << 10;

}  // namespace

HttpSession::HttpSession(loop::Loop& loop, StreamSocket socket, HttpHandler& handler,
                         loop::Task on_over)
    : loop_(loop),
      handler_(handler),
      on_over_(std::move(on_over)),
      socket_(std::move(socket)),
      timer_(loop) {
  parser_.header_limit(kMostHeader);
  parser_.body_limit(handler_.most_body());
  Error ignored;
  socket_.non_blocking(true, ignored);
}

void HttpSession::Start() {
  timer_.After(kPatience, [self = shared_from_this()] {
    self->too_late_ = true;
    Error ignored;
    self->socket_.cancel(ignored);
  });
  http::async_read(socket_, buffer_, parser_,
                   [self = shared_from_this()](Error error, size_t) { self->OnRead(error); });
}

void HttpSession::Close() {
  if (std::exchange(closed_, true)) return;
  timer_.Cancel();
  Error ignored;
  socket_.close(ignored);
  if (loop::Task gone = std::exchange(on_gone_, nullptr)) gone();
  std::exchange(on_over_, nullptr)();
}

void HttpSession::OnRead(Error error) {
  if (closed_) return;
  timer_.Cancel();
  if (too_late_) return Send({408, ""});
  if (error == http::error::body_limit) return Send({413, ""});
  if (error == http::error::end_of_stream || error == http::error::partial_message) return Close();
  const bool is_no_http =
      error.category() == http::make_error_code(http::error::bad_method).category();
  if (error) return is_no_http ? Send({400, ""}) : Close();
  // Nothing more is read, and it may wait for long.
  buffer_.consume(buffer_.size());
  buffer_.shrink_to_fit();
  auto& request = parser_.get();
  const auto target = request.target(), verb = request.method_string();
  loop::Task on_gone = handler_.Handle(
      {{verb.data(), verb.size()}, {target.data(), target.size()}, std::move(request.body())},
      [self = shared_from_this()](HorovodStore::Reply reply) { self->Answer(std::move(reply)); });
  if (answered_ || closed_) return;
  on_gone_ = std::move(on_gone);
  WatchClient();
}

void HttpSession::Answer(HorovodStore::Reply reply) {
  answered_ = true;
  on_gone_ = nullptr;
  if (!closed_) Send(std::move(reply));
}

// No timer runs: a rank waits for the others of its job. It goes when it is killed.
void HttpSession::WatchClient() {
  socket_.async_wait(StreamSocket::wait_read, [self = shared_from_this()](Error error) {
    if (self->closed_ || self->answered_) return;
    Error failed = error;
    // More than the request is not asked for, and dropped.
    if (!failed) {
      (void)self->socket_.read_some(asio::buffer(self->loop_.scratch(), kDroppedAtOnce), failed);
    }
    if (failed && failed != asio::error::would_block && failed != asio::error::interrupted) {
      return self->Close();
    }
    self->WatchClient();
  });
}

// A client looks for the header's name as it is spelled here.
void HttpSession::Send(HorovodStore::Reply reply) {
  auto message = std::make_shared<http::response<http::string_body>>();
  message->version(11);
  message->result(static_cast<unsigned>(reply.status));
  message->set(http::field::connection, "close");
  message->content_length(reply.body.size());
  message->body() = std::move(reply.body);
  timer_.After(kPatience, [self = shared_from_this()] { self->Close(); });
  http::async_write(socket_, *message, [self = shared_from_this(), message](Error error, size_t) {
    if (error) return self->Close();
    self->AwaitEnd();
  });
}

// Who closes first keeps the port for a minute: let it be the client.
void HttpSession::AwaitEnd() {
  if (closed_) return;
  Error ignored;
  socket_.shutdown(StreamSocket::shutdown_send, ignored);
  socket_.async_wait(StreamSocket::wait_read,
                     [self = shared_from_this()](Error) { self->Close(); });
}

}  // namespace dtrain::stores
