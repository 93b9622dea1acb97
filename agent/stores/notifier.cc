// SPDX-License-Identifier: Apache-2.0
#include "agent/stores/notifier.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/manifest/sha256.h"

namespace dtrain::stores {
namespace {

constexpr size_t kMacBytes = manifest::kHashBytes;
static_assert(kNoticeHead == kMacBytes + 4);

std::string LittleEndian(uint32_t number) {
  std::string bytes;
  for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(number >> shift);
  return bytes;
}

// BINUNICODE.
std::string PickledText(absl::string_view text) {
  return absl::StrCat("X", LittleEndian(static_cast<uint32_t>(text.size())), text);
}

}  // namespace

// Protocol 2, which any Python 3 reads: an object without calling its __init__, and its two
// members. The length is in the worker's own byte order, which is little-endian wherever dtrain
// runs.
std::string NoticeBytes(absl::string_view key, uint32_t timestamp, uint8_t change) {
  const std::string body =
      absl::StrCat("\x80\x02", "chorovod.runner.elastic.worker\nHostsUpdatedRequest\n", ")\x81}(",
                   PickledText("timestamp"), "J", LittleEndian(timestamp), PickledText("res"), "K",
                   std::string(1, static_cast<char>(change)), "ub.");
  return absl::StrCat(manifest::HmacSha256(key, body),
                      LittleEndian(static_cast<uint32_t>(body.size())), body);
}

std::optional<size_t> AnswerSize(absl::string_view head) {
  if (head.size() != kNoticeHead) return std::nullopt;
  uint32_t size = 0;
  for (size_t i = kNoticeHead; i-- > kMacBytes;) {
    size = size << 8 | static_cast<unsigned char>(head[i]);
  }
  if (size > kMostAnswer) return std::nullopt;
  return size;
}

bool IsAnswer(absl::string_view key, absl::string_view bytes) {
  const std::optional<size_t> size = AnswerSize(bytes.substr(0, kNoticeHead));
  if (!size || bytes.size() != kNoticeHead + *size) return false;
  return bytes.substr(0, kMacBytes) == manifest::HmacSha256(key, bytes.substr(kNoticeHead));
}

namespace {

// The worker answers in a thread of its own, for which Python's lock has to become free.
constexpr Duration kNoticePatience = std::chrono::seconds(5);
constexpr size_t kMostEndpoints = 8;

std::vector<boost::asio::ip::tcp::endpoint> EndpointsOf(const WorkerAddress& address) {
  std::vector<boost::asio::ip::tcp::endpoint> endpoints{
      {boost::asio::ip::address_v4::loopback(), address.places.front().port}};
  for (const WorkerAddress::Place& place : address.places) {
    boost::system::error_code error;
    const auto ip = boost::asio::ip::make_address(place.ip, error);
    const boost::asio::ip::tcp::endpoint endpoint(ip, place.port);
    const bool known = std::find(endpoints.begin(), endpoints.end(), endpoint) != endpoints.end();
    if (!error && !known && endpoints.size() < kMostEndpoints) endpoints.push_back(endpoint);
  }
  return endpoints;
}

}  // namespace

Notifier::Notifier(loop::Loop& loop, WorkerAddress to, const v1::ElasticNotice& notice, Done done)
    : key_(to.key),
      bytes_(NoticeBytes(key_, notice.timestamp(), static_cast<uint8_t>(notice.change()))),
      endpoints_(EndpointsOf(to)),
      socket_(loop.context()),
      deadline_(loop),
      done_(std::move(done)) {
  noticed_.set_local_rank(notice.local_rank());
  noticed_.set_timestamp(notice.timestamp());
}

void Notifier::Start() {
  deadline_.After(kNoticePatience, [self = shared_from_this()] {
    self->OnFailed("no answer within 5 s");
    if (self->done_) self->Finish(absl::StrJoin(self->failures_, "; "));
  });
  TryNext();
}

void Notifier::TryNext() {
  Error ignored;
  socket_.close(ignored);
  if (attempt_ == endpoints_.size()) return Finish(absl::StrJoin(failures_, "; "));
  const Attempt attempt = ++attempt_;
  socket_.async_connect(endpoints_[attempt - 1], [self = shared_from_this(), attempt](Error error) {
    if (!self->done_ || attempt != self->attempt_) return;
    if (error) {
      self->OnFailed(error.message());
      return self->TryNext();
    }
    self->Send(attempt);
  });
}

void Notifier::Send(Attempt attempt) {
  boost::asio::async_write(socket_, boost::asio::buffer(bytes_),
                           [self = shared_from_this(), attempt](Error error, size_t) {
                             if (!self->done_ || attempt != self->attempt_) return;
                             if (error) {
                               self->OnFailed(error.message());
                               return self->TryNext();
                             }
                             self->ReadHead(attempt);
                           });
}

void Notifier::ReadHead(Attempt attempt) {
  answer_.assign(kNoticeHead, '\0');
  boost::asio::async_read(socket_, boost::asio::buffer(answer_),
                          [self = shared_from_this(), attempt](Error error, size_t) {
                            if (!self->done_ || attempt != self->attempt_) return;
                            const auto size = AnswerSize(self->answer_);
                            if (error || !size) {
                              self->OnFailed(error ? error.message() : "not Horovod's answer");
                              return self->TryNext();
                            }
                            self->answer_.resize(kNoticeHead + *size);
                            self->ReadBody(attempt);
                          });
}

void Notifier::ReadBody(Attempt attempt) {
  boost::asio::async_read(socket_, boost::asio::buffer(answer_) + kNoticeHead,
                          [self = shared_from_this(), attempt](Error error, size_t) {
                            if (!self->done_ || attempt != self->attempt_) return;
                            if (!error && IsAnswer(self->key_, self->answer_))
                              return self->Finish("");
                            self->OnFailed(error ? error.message() : "not Horovod's answer");
                            self->TryNext();
                          });
}

void Notifier::OnFailed(const std::string& why) {
  const Endpoint& at = endpoints_[attempt_ - 1];
  failures_.push_back(absl::StrCat(at.address().to_string(), " port ", at.port(), ": ", why));
}

void Notifier::Finish(std::string failed) {
  deadline_.Cancel();
  Error ignored;
  socket_.close(ignored);
  noticed_.set_failed(std::move(failed));
  std::exchange(done_, nullptr)(std::move(noticed_));
}

}  // namespace dtrain::stores
