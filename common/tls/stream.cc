// SPDX-License-Identifier: Apache-2.0
#include "common/tls/stream.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/posix_error.h"
#include "common/os/fd.h"
#include "common/tls/session.h"

namespace dtrain::tls {
namespace {

// Two records of TLS. There are two such buffers per connection, beside those of the kernel.
constexpr size_t kBufferBytes = 32 << 10;
// Then others on the loop have their turn.
constexpr int kRounds = 2;
// What a peer that was refused may have sent before it saw that.
constexpr size_t kDrainBytes = 256 << 10;

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

Stream::Stream(loop::Loop& loop, os::UniqueFd tcp, Callbacks callbacks, Limits limits)
    : loop_(loop),
      limits_(limits),
      callbacks_(std::move(callbacks)),
      tcp_(std::move(tcp)),
      timer_(loop) {}

Stream::~Stream() {
  if (alive_ != nullptr) *alive_ = false;
}

std::unique_ptr<Stream> Stream::Accept(loop::Loop& loop, const Context& server, os::UniqueFd tcp,
                                       Callbacks callbacks, Limits limits) {
  std::unique_ptr<Stream> out(new Stream(loop, std::move(tcp), std::move(callbacks), limits));
  out->Begin(Session::Make(server, out->tcp_.get(), "", ""));
  return out;
}

std::unique_ptr<Stream> Stream::Connect(loop::Loop& loop, const Context& client, os::UniqueFd tcp,
                                        absl::string_view server_name, absl::string_view alpn,
                                        Callbacks callbacks, Limits limits) {
  std::unique_ptr<Stream> out(new Stream(loop, std::move(tcp), std::move(callbacks), limits));
  out->Begin(Session::Make(client, out->tcp_.get(), server_name, alpn));
  return out;
}

absl::Status Stream::CheckAgain(const Context& context) const {
  return session_ != nullptr && shaken_ ? session_->CheckAgain(context) : absl::OkStatus();
}

bool Stream::heard() const { return session_ != nullptr && session_->heard(); }

void Stream::Begin(absl::StatusOr<std::unique_ptr<Session>> session) {
  absl::Status status = session.status();
  status.Update(os::SetNonBlocking(tcp_.get(), true));
  if (status.ok()) {
    // gRPC writes small messages and waits for answers. On another socket this changes nothing.
    const int on = 1;
    setsockopt(tcp_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    session_ = *std::move(session);
    tcp_watch_ = std::make_unique<loop::FdWatch>(loop_, tcp_.get());
    timer_.After(limits_.handshake, [this] {
      Close(absl::DeadlineExceededError(absl::StrCat(
          "no TLS handshake within ", absl::FormatDuration(absl::FromChrono(limits_.handshake)))));
    });
  }
  // The owner has no Stream yet: callbacks come from the loop.
  loop_.Post([this, alive = alive_, status] {
    if (*alive) status.ok() ? Advance() : Close(status);
  });
}

void Stream::Advance() {
  if (failing_) return Drain();
  shaken_ ? Pump() : Handshake();
}

void Stream::Handshake() {
  switch (session_->Handshake()) {
    case Session::Outcome::kWantRead:
      return WaitForPeer(true);
    case Session::Outcome::kWantWrite:
      return WaitForPeer(false);
    case Session::Outcome::kDone:
      return OfferPlain();
    case Session::Outcome::kEnded:
    case Session::Outcome::kFailed:
      return Fail(session_->why());
  }
}

void Stream::OfferPlain() {
  Ready ready;
  absl::StatusOr<Certificate> peer = session_->Peer();
  if (!peer.ok()) return Fail(peer.status());
  auto pair = os::SocketPair();
  absl::Status status = pair.status();
  if (pair.ok()) status = os::SetNonBlocking(pair->first.get(), true);
  if (!status.ok()) return Fail(status);
  shaken_ = true;
  timer_.Cancel();
  plain_ = std::move(pair->first);
  plain_watch_ = std::make_unique<loop::FdWatch>(loop_, plain_.get());
  plain_watch_->OnHangup([this] { OnPlainGone(); });
  in_.buffer = std::make_unique_for_overwrite<char[]>(kBufferBytes);
  out_.buffer = std::make_unique_for_overwrite<char[]>(kBufferBytes);
  ready.plain = std::move(pair->second);
  ready.peer = *std::move(peer);
  ready.alpn = session_->alpn();
  const std::shared_ptr<bool> alive = alive_;
  std::exchange(callbacks_.on_ready, nullptr)(std::move(ready));
  if (*alive) Pump();
}

// ---- Both ways ----

void Stream::Pump() {
  for (int round = 0; round < kRounds; ++round) {
    bool moved = FromPeer();
    moved |= ToPlain();
    moved |= FromPlain();
    moved |= ToPeer();
    if (in_.done && out_.done) over_ = absl::OkStatus();
    if (over_.has_value()) return Close(*over_);
    if (!moved) return;
  }
  loop_.Post([this, alive = alive_] {
    if (*alive) Pump();
  });
}

bool Stream::FromPeer() {
  if (!in_.empty() || in_.ended || over_.has_value()) return false;
  size_t n = 0;
  switch (session_->Read(in_.buffer.get(), kBufferBytes, &n)) {
    case Session::Outcome::kDone:
      in_.begin = 0;
      in_.end = n;
      if (plain_gone_) in_.Drop();
      if (inspector_ && !in_.empty()) {
        absl::Status fine = inspector_(absl::string_view(in_.buffer.get(), n));
        if (!fine.ok()) over_ = std::move(fine);
      }
      return !over_.has_value();
    case Session::Outcome::kWantRead:
      WaitForPeer(true);
      return false;
    case Session::Outcome::kWantWrite:
      WaitForPeer(false);
      return false;
    case Session::Outcome::kEnded:
      in_.ended = true;
      return true;
    case Session::Outcome::kFailed:
      // Who was told goodbye need not answer.
      over_ = plain_gone_ && out_.done ? absl::OkStatus() : session_->why();
      return false;
  }
  return false;
}

bool Stream::ToPlain() {
  if (over_.has_value()) return false;
  if (in_.empty()) {
    if (!in_.ended || in_.done) return false;
    shutdown(plain_.get(), SHUT_WR);
    in_.done = true;
    return true;
  }
  const ssize_t n =
      send(plain_.get(), in_.buffer.get() + in_.begin, in_.end - in_.begin, MSG_NOSIGNAL);
  if (n < 0 && WouldBlock(errno)) {
    WaitForPlain(false);
    return false;
  }
  // Nobody reads it. What was written to us meanwhile still goes out, and the hangup is told.
  n < 0 ? in_.Drop() : static_cast<void>(in_.begin += static_cast<size_t>(n));
  return true;
}

bool Stream::FromPlain() {
  if (!out_.empty() || out_.ended || over_.has_value()) return false;
  const ssize_t n = recv(plain_.get(), out_.buffer.get(), kBufferBytes, 0);
  if (n < 0 && WouldBlock(errno)) {
    WaitForPlain(true);
    return false;
  }
  out_.begin = 0;
  out_.end = n > 0 ? static_cast<size_t>(n) : 0;
  // An error, too: it was closed with bytes unread.
  out_.ended = n <= 0;
  return true;
}

bool Stream::ToPeer() {
  if (over_.has_value() || out_.done || (out_.empty() && !out_.ended)) return false;
  size_t n = 0;
  const Session::Outcome outcome =
      out_.empty() ? session_->TellEnd()
                   : session_->Write(out_.buffer.get() + out_.begin, out_.end - out_.begin, &n);
  switch (outcome) {
    case Session::Outcome::kDone:
      out_.done = out_.empty();
      out_.begin += n;
      if (plain_gone_) AllowFarewell(absl::OkStatus());
      if (plain_gone_ && out_.done) shutdown(tcp_.get(), SHUT_WR);
      return true;
    case Session::Outcome::kWantRead:
      WaitForPeer(true);
      return false;
    case Session::Outcome::kWantWrite:
      WaitForPeer(false);
      return false;
    case Session::Outcome::kEnded:
      over_ = absl::UnavailableError("it ended the connection");
      return false;
    case Session::Outcome::kFailed:
      over_ = session_->why();
      return false;
  }
  return false;
}

void Stream::OnPlainGone() {
  plain_gone_ = true;
  in_.Drop();
  if (out_.done) shutdown(tcp_.get(), SHUT_WR);
  AllowFarewell(absl::OkStatus());
  Pump();
}

void Stream::AllowFarewell(absl::Status why) {
  timer_.After(limits_.farewell, [this, why = std::move(why)] { Close(why); });
}

void Stream::WaitForPeer(bool readable) {
  bool& armed = armed_[readable ? 0 : 1];
  if (std::exchange(armed, true)) return;
  auto task = [this, &armed] {
    armed = false;
    Advance();
  };
  readable ? tcp_watch_->OnReadable(task) : tcp_watch_->OnWritable(task);
}

void Stream::WaitForPlain(bool readable) {
  bool& armed = armed_[readable ? 2 : 3];
  if (std::exchange(armed, true)) return;
  auto task = [this, &armed] {
    armed = false;
    Pump();
  };
  readable ? plain_watch_->OnReadable(task) : plain_watch_->OnWritable(task);
}

// ---- The end ----

// Closing a socket with bytes unread resets the connection, and the peer would lose the alert that
// tells it why it was refused.
void Stream::Fail(absl::Status why) {
  failing_ = true;
  over_ = std::move(why);
  shutdown(tcp_.get(), SHUT_WR);
  AllowFarewell(*over_);
  Drain();
}

void Stream::Drain() {
  char scrap[4096];
  while (drained_ < kDrainBytes) {
    const ssize_t n = recv(tcp_.get(), scrap, sizeof(scrap), 0);
    if (n < 0 && WouldBlock(errno)) return WaitForPeer(true);
    if (n <= 0) break;
    drained_ += static_cast<size_t>(n);
  }
  Close(*over_);
}

void Stream::Close(absl::Status why) {
  timer_.Cancel();
  plain_watch_.reset();
  tcp_watch_.reset();
  session_.reset();
  plain_.Reset();
  tcp_.Reset();
  *std::exchange(alive_, nullptr) = false;
  std::exchange(callbacks_.on_closed, nullptr)(std::move(why));
}

}  // namespace dtrain::tls
