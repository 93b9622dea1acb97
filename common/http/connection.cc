// SPDX-License-Identifier: Apache-2.0
#include "common/http/connection.h"

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/chunk_encode.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <cerrno>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/secret.h"
#include "common/loop/stray_descriptors.h"

namespace dtrain::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace bhttp = boost::beast::http;

constexpr size_t kHeaderBytes = 8 << 10;
constexpr size_t kBufferBytes = 16 << 10;
constexpr size_t kReadBytes = 4 << 10;
constexpr size_t kPieceBytes = 64 << 10;

absl::string_view View(beast::string_view text) { return {text.data(), text.size()}; }

// Whether a Host header, "127.0.0.1:80", "[::1]", "gpu01", is one of `hosts`: what a page of
// another site cannot make a browser send.
bool NamesOneOf(absl::string_view host, const std::vector<std::string>& hosts) {
  const size_t colon = host.rfind(':');
  if (colon != host.npos && host.find(']', colon) == host.npos) host = host.substr(0, colon);
  boost::system::error_code not_numeric;
  asio::ip::address address;
  if (absl::ConsumePrefix(&host, "[")) {
    if (!absl::ConsumeSuffix(&host, "]")) return false;
    address = asio::ip::make_address_v6(std::string(host), not_numeric);
    if (not_numeric) return false;
  } else {
    address = asio::ip::make_address_v4(std::string(host), not_numeric);
  }
  return std::any_of(hosts.begin(), hosts.end(), [&](const std::string& each) {
    if (not_numeric) return absl::EqualsIgnoreCase(host, each);
    boost::system::error_code error;
    return asio::ip::make_address(each, error) == address && !error;
  });
}

// What holds no data of anyone's: whether we live, and the page, which asks for the token itself.
bool IsOpen(absl::string_view path) { return path == "/healthz" || path == "/"; }

}  // namespace

Connection::Connection(loop::Loop& loop, StreamSocket socket, Access access, const Limits& limits,
                       std::shared_ptr<AsyncHandler> handler, Callbacks callbacks)
    : access_(std::move(access)),
      limits_(limits),
      handler_(std::move(handler)),
      callbacks_(std::move(callbacks)),
      socket_(std::move(socket)),
      timer_(loop),
      buffer_(kBufferBytes) {}

void Connection::Close() {
  if (std::exchange(closed_, true)) return;
  timer_.Cancel();
  feed_.reset();
  Error ignored;
  socket_.shutdown(asio::socket_base::shutdown_both, ignored);
  loop::StrangersSocket closed{os::UniqueFd(socket_.release(ignored))};
  closed = {};
  busy_ = false;
  auto self = shared_from_this();
  std::exchange(callbacks_.on_over, nullptr)(self);
}

void Connection::Read() {
  parser_.emplace();
  parser_->header_limit(kHeaderBytes);
  timer_.After(limits_.request, [self = shared_from_this()] { self->Close(); });
  Parse();
}

// Parses the bytes in the buffer, and reads more until the header is complete.
void Connection::Parse() {
  Error error;
  while (!error && !parser_->is_header_done()) {
    if (buffer_.size() > 0) {
      buffer_.consume(parser_->put(buffer_.data(), error));
      if (error != bhttp::error::need_more) continue;
    }
    error = {};
    if (buffer_.size() == buffer_.max_size()) {
      error = bhttp::error::buffer_overflow;
      break;
    }
    const ssize_t n = Receive();
    if (n == 0) {
      if (parser_->got_some()) parser_->put_eof(error);
      if (!error) error = bhttp::error::end_of_stream;
    } else if (n < 0 && errno == EAGAIN) {
      socket_.async_wait(StreamSocket::wait_read, [self = shared_from_this()](Error failed) {
        if (self->closed_) return;
        failed ? self->OnHeader(failed) : self->Parse();
      });
      return;
    } else if (n < 0 && errno != EINTR) {
      error.assign(errno, boost::system::system_category());
    }
  }
  OnHeader(error);
}

// As recv(2), into the buffer.
ssize_t Connection::Receive() {
  const size_t room = buffer_.max_size() - buffer_.size();
  const auto place = buffer_.prepare(std::min(room, kReadBytes));
  const ssize_t n = loop::ReceiveBytes(socket_.native_handle(), place.data(), place.size());
  if (n > 0) buffer_.commit(static_cast<size_t>(n));
  return n;
}

void Connection::OnHeader(Error error) {
  if (closed_) return;
  timer_.Cancel();
  busy_ = true;
  if (!error) return Answer();
  const bool not_http =
      error.category() == bhttp::make_error_code(bhttp::error::bad_method).category();
  if (!not_http || error == bhttp::error::end_of_stream || error == bhttp::error::partial_message) {
    return Close();
  }
  const bool too_large =
      error == bhttp::error::header_limit || error == bhttp::error::buffer_overflow;
  Send(ErrorResponse(too_large ? 431 : 400, too_large ? "the request's header is too large"
                                                      : "this is not an HTTP request"),
       false);
}

bool Connection::TokenIsRight() {
  constexpr absl::string_view kScheme = "Bearer ";
  const absl::string_view given = View(parser_->get()[bhttp::field::authorization]);
  wrong_token_ = !given.empty();
  if (given.size() < kScheme.size() ||
      !absl::EqualsIgnoreCase(given.substr(0, kScheme.size()), kScheme)) {
    return false;
  }
  wrong_token_ =
      !SameSecret(absl::StripAsciiWhitespace(given.substr(kScheme.size())), access_.token);
  return !wrong_token_;
}

std::optional<Response> Connection::Refuse(const Target& target) {
  const auto& request = parser_->get();
  wrong_token_ = false;
  if (!access_.hosts.empty() && !NamesOneOf(View(request[bhttp::field::host]), access_.hosts)) {
    return ErrorResponse(403, "the Host header is not a name or address of this server");
  }
  if (request.count(bhttp::field::origin) != 0 || request.count(bhttp::field::upgrade) != 0) {
    return ErrorResponse(403, "requests from web pages are rejected");
  }
  // Our own page's requests name no Origin. A browser may go to the page from anywhere.
  const absl::string_view site = View(request["Sec-Fetch-Site"]);
  if (!site.empty() && site != "same-origin" && site != "none" && target.path != "/") {
    return ErrorResponse(403, "requests from pages of other sites are rejected");
  }
  if (access_.ask_for_token && !IsOpen(target.path) && !TokenIsRight()) {
    return ErrorResponse(401, "send the token: Authorization: Bearer TOKEN");
  }
  const bool posts = access_.may_post && request.method() == bhttp::verb::post;
  if (!posts && request.method() != bhttp::verb::get && request.method() != bhttp::verb::head) {
    return ErrorResponse(405, "only GET and HEAD are supported");
  }
  return std::nullopt;
}

void Connection::Answer() {
  const auto& request = parser_->get();
  // A body is never read: what follows it cannot be told from it.
  const auto length = parser_->content_length();
  const bool has_body = request.chunked() || (length && *length > 0);
  keep_alive_ = request.keep_alive() && !has_body;
  absl::StatusOr<Target> target = ParseTarget(View(request.target()));
  const Target none;
  if (auto refused = Refuse(target.ok() ? *target : none)) {
    if (!wrong_token_) return Send(*std::move(refused), keep_alive_);
    // Guessing takes its time, and is told.
    callbacks_.on_wrong_token();
    auto held = std::make_shared<Response>(*std::move(refused));
    timer_.After(limits_.wrong_token,
                 [self = shared_from_this(), held] { self->Send(std::move(*held), false); });
    return;
  }
  if (has_body) return Send(ErrorResponse(413, "a request with a body is rejected"), false);
  if (!target.ok()) return Send(ErrorResponse(400, target.status().message()), keep_alive_);
  target->accept = std::string(View(request[bhttp::field::accept]));
  target->is_post = request.method() == bhttp::verb::post;
  (*handler_)(*target, [self = shared_from_this()](Response response) {
    if (!self->closed_) self->Send(std::move(response), self->keep_alive_);
  });
}

template <typename Body>
void Connection::SetHeader(const Response& response, boost::beast::http::response<Body>& message) {
  const unsigned version = parser_->get().version();
  message.version(version == 0 ? 11 : version);
  message.result(static_cast<unsigned>(response.status));
  message.set(bhttp::field::server, "dtrain");
  message.set(bhttp::field::content_type, response.content_type);
  message.set(bhttp::field::cache_control, "no-store");
  message.set("X-Content-Type-Options", "nosniff");
  message.set("X-Frame-Options", "DENY");
  message.set("Content-Security-Policy", response.policy);
  message.set("Referrer-Policy", "no-referrer");
  message.set("Cross-Origin-Opener-Policy", "same-origin");
  message.set("Cross-Origin-Resource-Policy", "same-origin");
  if (response.status == 405) message.set(bhttp::field::allow, "GET, HEAD");
  if (response.status == 401) message.set(bhttp::field::www_authenticate, "Bearer");
  message.keep_alive(keep_alive_);
}

void Connection::Send(Response response, bool keep_alive) {
  const bool head = parser_->get().method() == bhttp::verb::head;
  keep_alive_ = keep_alive;
  if (response.feed != nullptr && !head) return StartFeed(std::move(response));
  auto message = std::make_shared<bhttp::response<bhttp::string_body>>();
  SetHeader(response, *message);
  message->content_length(response.body.size());
  if (!head) message->body() = std::move(response.body);
  AllowTimeToTake();
  bhttp::async_write(socket_, *message, [self = shared_from_this(), message](Error error, size_t) {
    self->OnSent(error);
  });
}

void Connection::OnSent(Error error) {
  if (closed_) return;
  timer_.Cancel();
  busy_ = false;
  if (error || !keep_alive_) return Close();
  callbacks_.on_answered();
  Read();
}

// ---- A body that grows ----

void Connection::StartFeed(Response response) {
  struct Header {
    bhttp::response<bhttp::empty_body> message;
    std::optional<bhttp::response_serializer<bhttp::empty_body>> serializer;
  };
  framed_ = parser_->get().version() >= 11;
  keep_alive_ = keep_alive_ && framed_;
  feed_ = std::move(response.feed);
  auto header = std::make_shared<Header>();
  SetHeader(response, header->message);
  header->message.chunked(framed_);
  header->serializer.emplace(header->message);
  AllowTimeToTake();
  bhttp::async_write_header(
      socket_, *header->serializer,
      [self = shared_from_this(), header](Error error, size_t) { self->SendPiece(error); });
  WatchPeer();
}

void Connection::SendPiece(Error error) {
  if (closed_) return;
  timer_.Cancel();
  if (error) return Close();
  auto piece = std::make_shared<std::string>(feed_->Next(kPieceBytes));
  if (piece->empty() && feed_->broken()) return Close();
  if (piece->empty() && !feed_->ended()) {
    feed_->Notify([self = shared_from_this()] { self->SendPiece({}); });
    return;
  }
  AllowTimeToTake();
  auto sent = [self = shared_from_this(), piece](Error e, size_t) {
    piece->empty() ? self->OnSent(e) : self->SendPiece(e);
  };
  if (piece->empty()) feed_.reset();
  if (!framed_) {
    asio::async_write(socket_, asio::buffer(*piece), sent);
  } else if (piece->empty()) {
    asio::async_write(socket_, bhttp::make_chunk_last(), sent);
  } else {
    asio::async_write(socket_, bhttp::make_chunk(asio::buffer(*piece)), sent);
  }
}

// A peer that hangs up while there is nothing to send is noticed, also after it has sent more.
void Connection::WatchPeer() {
  if (std::exchange(watching_, true)) return;
  socket_.async_wait(StreamSocket::wait_read, [self = shared_from_this()](Error error) {
    self->watching_ = false;
    if (self->closed_ || self->feed_ == nullptr || error) return;
    // Its next request, which is answered after this one.
    const ssize_t n = self->Receive();
    // Without room nothing was asked for, which looks like the end: nor does a reader say so much.
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return self->Close();
    self->WatchPeer();
  });
}

void Connection::AllowTimeToTake() {
  timer_.After(limits_.response, [self = shared_from_this()] { self->Close(); });
}

}  // namespace dtrain::http
