// SPDX-License-Identifier: Apache-2.0
#include "common/http/passage.h"

#include <sys/un.h>

#include <algorithm>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

namespace dtrain::http {
namespace {

namespace asio = boost::asio;
namespace bhttp = boost::beast::http;
using Error = boost::system::error_code;
using Unix = asio::local::stream_protocol;

constexpr size_t kReadAtOnce = 64 << 10;
// Answers of known length up to this, a page of log, are passed on in one piece.
constexpr uint64_t kWhole = uint64_t{4} << 20;

// One question on its way there, and its answer on its way back.
class Passage : public std::enable_shared_from_this<Passage> {
 public:
  Passage(loop::Loop& loop, std::string path, Reply reply)
      : path_(std::move(path)),
        reply_(std::move(reply)),
        socket_(loop.context()),
        timer_(loop),
        buffer_(kReadAtOnce) {
    parser_.body_limit(std::numeric_limits<uint64_t>::max());
  }

  void Ask(const std::string& target, Duration patience) {
    if (path_.size() >= sizeof(sockaddr_un::sun_path)) return Fail(502, "its path is too long");
    timer_.After(patience, [self = shared_from_this()] { self->Fail(504, "it does not answer"); });
    request_ = {bhttp::verb::get, target, 11};
    request_.set(bhttp::field::host, "localhost");
    request_.keep_alive(false);
    socket_.async_connect(Unix::endpoint(path_), [self = shared_from_this()](Error error) {
      if (error) return self->Fail(502, error.message());
      bhttp::async_write(self->socket_, self->request_,
                         [self](Error failed, size_t) { self->OnSent(failed); });
    });
  }

  // What has come and was not taken yet.
  std::string& body() { return parser_.get().body(); }
  bool is_whole() const { return parser_.is_done(); }
  bool is_broken() const { return broken_; }

  // Calls `task` when there is more, or no more will come.
  void Read(loop::Task task) {
    task_ = std::move(task);
    if (std::exchange(reading_, true)) return;
    bhttp::async_read_some(socket_, buffer_, parser_,
                           [self = shared_from_this()](Error error, size_t) {
                             self->reading_ = false;
                             self->broken_ = error && !self->is_whole();
                             if (self->task_ != nullptr) std::exchange(self->task_, nullptr)();
                           });
  }
  void Close() {
    task_ = nullptr;
    Error ignored;
    socket_.close(ignored);
  }

 private:
  void OnSent(Error error) {
    if (error) return Fail(502, error.message());
    bhttp::async_read_header(
        socket_, buffer_, parser_,
        [self = shared_from_this()](Error failed, size_t) { self->OnHeader(failed); });
  }
  void OnHeader(Error error);
  void TakeWhole();
  Response Header() {
    Response response;
    response.status = static_cast<int>(parser_.get().result_int());
    response.content_type = std::string(parser_.get()[bhttp::field::content_type]);
    return response;
  }
  void Fail(int status, absl::string_view why) {
    timer_.Cancel();
    Close();
    if (reply_ == nullptr) return;
    std::exchange(reply_, nullptr)(
        ErrorResponse(status, absl::StrCat("the job's launcher cannot be reached: ", why)));
  }

  const std::string path_;
  Reply reply_;
  Unix::socket socket_;
  loop::Timer timer_;
  boost::beast::flat_buffer buffer_;
  bhttp::request<bhttp::empty_body> request_;
  bhttp::response_parser<bhttp::string_body> parser_;
  loop::Task task_;
  bool reading_ = false;
  bool broken_ = false;
};

class PassageFeed : public Feed {
 public:
  explicit PassageFeed(std::shared_ptr<Passage> passage) : passage_(std::move(passage)) {}
  ~PassageFeed() override { passage_->Close(); }

  std::string Next(size_t limit) override {
    std::string& body = passage_->body();
    if (body.size() <= limit) return std::exchange(body, "");
    std::string out = body.substr(0, limit);
    body.erase(0, limit);
    return out;
  }
  bool ended() const override { return passage_->is_whole() && passage_->body().empty(); }
  bool broken() const override { return passage_->is_broken(); }
  void Notify(loop::Task task) override { passage_->Read(std::move(task)); }

 private:
  const std::shared_ptr<Passage> passage_;
};

void Passage::OnHeader(Error error) {
  if (reply_ == nullptr) return;
  if (error) return Fail(502, error.message());
  const auto length = parser_.content_length();
  if (length && *length <= kWhole) return TakeWhole();
  timer_.Cancel();
  Response response = Header();
  response.feed = std::make_unique<PassageFeed>(shared_from_this());
  std::exchange(reply_, nullptr)(std::move(response));
}

void Passage::TakeWhole() {
  if (broken_) return Fail(502, "its answer is cut short");
  if (!is_whole()) return Read([self = shared_from_this()] { self->TakeWhole(); });
  timer_.Cancel();
  Response response = Header();
  response.body = std::move(body());
  Close();
  std::exchange(reply_, nullptr)(std::move(response));
}

}  // namespace

void PassOn(loop::Loop& loop, const std::string& socket, const Target& target, Duration patience,
            Reply reply) {
  std::make_shared<Passage>(loop, socket, std::move(reply))->Ask(target.text, patience);
}

}  // namespace dtrain::http
