// SPDX-License-Identifier: Apache-2.0
#include "common/http/client.h"

#include <sys/un.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <cerrno>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/posix_error.h"

namespace dtrain::http {
namespace {

namespace asio = boost::asio;
namespace bhttp = boost::beast::http;
using Error = boost::system::error_code;

// The largest answer is a page of log.
constexpr uint64_t kMostBytes = uint64_t{64} << 20;

class Client {
 public:
  // Gives up when nothing has come for `interval` or, with `on_idle`, calls that instead.
  Client(std::string path, Duration interval,
         std::optional<absl::FunctionRef<void()>> on_idle = std::nullopt)
      : path_(std::move(path)), interval_(interval), on_idle_(on_idle), socket_(context_) {}

  absl::Status Ask(const std::string& target, bhttp::verb method = bhttp::verb::get) {
    sockaddr_un name;
    if (path_.size() >= sizeof(name.sun_path)) {
      return PosixError(ENAMETOOLONG, absl::StrCat("connect to ", path_));
    }
    Error error;
    socket_.connect(asio::local::stream_protocol::endpoint(path_), error);
    if (error) return Failure("connect to", error);
    bhttp::request<bhttp::empty_body> request{method, target, 11};
    request.set(bhttp::field::host, "localhost");
    request.keep_alive(false);
    request.prepare_payload();
    parser_.body_limit(kMostBytes);
    absl::Status sent =
        Await("ask", [&](auto done) { bhttp::async_write(socket_, request, done); });
    if (!sent.ok()) return sent;
    return Await("hear from",
                 [&](auto done) { bhttp::async_read_header(socket_, buffer_, parser_, done); });
  }

  absl::StatusOr<Answer> Rest() {
    absl::Status read =
        Await("hear from", [&](auto done) { bhttp::async_read(socket_, buffer_, parser_, done); });
    if (!read.ok()) return read;
    return Answer{status(), std::move(parser_.get().body())};
  }

  absl::StatusOr<Answer> Pieces(absl::FunctionRef<bool(absl::string_view)> on_piece) {
    parser_.body_limit(std::numeric_limits<uint64_t>::max());
    std::string& body = parser_.get().body();
    while (!parser_.is_done()) {
      absl::Status read = Await(
          "hear from", [&](auto done) { bhttp::async_read_some(socket_, buffer_, parser_, done); });
      if (!read.ok()) return read;
      if (body.empty()) continue;
      if (!on_piece(body)) break;
      body.clear();
    }
    return Answer{status(), ""};
  }

  int status() const { return static_cast<int>(parser_.get().result_int()); }

 private:
  // `start` is given the handler of an asynchronous operation: a synchronous one knows no limit.
  template <typename Start>
  absl::Status Await(absl::string_view what, Start start) {
    Error error = asio::error::timed_out;
    start([&error](Error e, size_t) { error = e; });
    context_.restart();
    context_.run_for(interval_);
    while (on_idle_ && !context_.stopped()) {
      (*on_idle_)();
      context_.run_for(interval_);
    }
    if (!error) return absl::OkStatus();
    // What is still under way must not find `error` gone.
    socket_.close();
    absl::Status failure = Failure(what, error);
    context_.restart();
    context_.run();
    return failure;
  }

  absl::Status Failure(absl::string_view what, const Error& error) const {
    const std::string text = absl::StrCat(what, " ", path_);
    if (error.category() == asio::error::get_system_category()) {
      return PosixError(error.value(), text);
    }
    return absl::UnavailableError(absl::StrCat(text, ": ", error.message()));
  }

  const std::string path_;
  const Duration interval_;
  const std::optional<absl::FunctionRef<void()>> on_idle_;
  asio::io_context context_;
  asio::local::stream_protocol::socket socket_;
  boost::beast::flat_buffer buffer_;
  bhttp::response_parser<bhttp::string_body> parser_;
};

}  // namespace

absl::StatusOr<Answer> Get(const std::string& socket, const std::string& target,
                           Duration patience) {
  Client client(socket, patience);
  absl::Status asked = client.Ask(target);
  if (!asked.ok()) return asked;
  return client.Rest();
}

absl::StatusOr<Answer> Post(const std::string& socket, const std::string& target,
                            Duration patience) {
  Client client(socket, patience);
  absl::Status asked = client.Ask(target, bhttp::verb::post);
  if (!asked.ok()) return asked;
  return client.Rest();
}

absl::StatusOr<Answer> Stream(const std::string& socket, const std::string& target,
                              absl::FunctionRef<bool(absl::string_view piece)> on_piece,
                              Duration interval, absl::FunctionRef<void()> on_idle) {
  Client client(socket, interval, on_idle);
  absl::Status asked = client.Ask(target);
  if (!asked.ok()) return asked;
  return client.status() == 200 ? client.Pieces(on_piece) : client.Rest();
}

}  // namespace dtrain::http
