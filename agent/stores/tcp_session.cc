// SPDX-License-Identifier: Apache-2.0
#include "agent/stores/tcp_session.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/stores/tcp_store.h"

namespace dtrain::stores {
namespace {

namespace asio = boost::asio;

// Read at a time: other clients have their turn in between.
constexpr size_t kReadAtOnce = 64 << 10;
// Answers are written when they are as much, or when all that was read has been answered.
constexpr size_t kWriteAtOnce = 64 << 10;
// What may wait for a client beside its largest answer: news of keys that it watches.
constexpr size_t kMostWaiting = TcpLimits().reply + (1 << 20);

}  // namespace

TcpSession::TcpSession(loop::Loop& loop, StreamSocket socket, Hooks hooks)
    : loop_(loop), socket_(std::move(socket)), hooks_(std::move(hooks)) {
  Error ignored;
  socket_.non_blocking(true, ignored);
  // Two small answers in a row would wait for each other's acknowledgement.
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
}

void TcpSession::Start() { AwaitBytes(); }

void TcpSession::Close(absl::Status why) {
  if (std::exchange(closed_, true)) return;
  Error ignored;
  socket_.close(ignored);
  hooks_.on_held(-static_cast<ptrdiff_t>(held_));
  hooks_.on_over(std::move(why));
}

void TcpSession::AwaitBytes() {
  if (std::exchange(reading_, true)) return;  // blocked by what others had sent to it
  socket_.async_wait(StreamSocket::wait_read, [self = shared_from_this()](Error error) {
    self->reading_ = false;
    if (self->closed_) return;
    if (error) return self->Close();
    self->OnReadable();
  });
}

void TcpSession::OnReadable() {
  Error error;
  const size_t got = socket_.read_some(asio::buffer(loop_.scratch(), kReadAtOnce), error);
  if (error == asio::error::would_block || error == asio::error::interrupted) return AwaitBytes();
  if (error) return Close();  // it has left, or was killed
  Take({loop_.scratch(), got});
}

void TcpSession::Take(absl::string_view bytes) {
  taking_ = true;
  while (!blocked_ && !closed_) {
    absl::StatusOr<std::optional<TcpRequest>> next = parser_.Next(bytes);
    if (!next.ok()) return Close(next.status());
    if (!*next) break;
    const absl::Status done = hooks_.on_request(std::move(**next));
    if (!done.ok()) return Close(done);
    if (out_.size() >= kWriteAtOnce) Flush();
  }
  taking_ = false;
  if (closed_) return;
  rest_ = std::string(bytes);
  Flush();
  Account();
  if (!closed_ && !blocked_) AwaitBytes();
}

void TcpSession::Send(absl::string_view bytes) {
  if (closed_) return;
  if (out_.size() - sent_ + bytes.size() > kMostWaiting) {
    return Close(absl::ResourceExhaustedError("it does not read its replies"));
  }
  out_.append(bytes.data(), bytes.size());
  if (taking_) return;
  Flush();
  Account();
}

void TcpSession::Flush() {
  while (!blocked_ && !closed_ && sent_ < out_.size()) {
    Error error;
    sent_ += socket_.write_some(asio::buffer(out_.data() + sent_, out_.size() - sent_), error);
    if (error == asio::error::interrupted) continue;
    if (error && error != asio::error::would_block) return Close();
    if (!error) continue;
    blocked_ = true;
    socket_.async_wait(StreamSocket::wait_write, [self = shared_from_this()](Error failed) {
      if (self->closed_) return;
      if (failed) return self->Close();
      self->OnWritable();
    });
  }
  if (sent_ == out_.size()) {
    std::string().swap(out_);
  } else if (sent_ >= kWriteAtOnce) {
    out_.erase(0, sent_);
  } else {
    return;
  }
  sent_ = 0;
}

void TcpSession::OnWritable() {
  blocked_ = false;
  Flush();
  Account();
  if (closed_ || blocked_) return;
  const std::string rest = std::exchange(rest_, {});
  Take(rest);
}

void TcpSession::Account() {
  if (closed_) return;
  const size_t now = parser_.buffered() + rest_.capacity() + out_.capacity();
  const auto change = static_cast<ptrdiff_t>(now) - static_cast<ptrdiff_t>(held_);
  held_ = now;
  if (!hooks_.on_held(change)) {
    Close(absl::ResourceExhaustedError(
        "all clients together have more under way than the node's memory may be filled with"));
  }
}

namespace {

// Connections of a node: a rank has two for each store that it opens (torch up to 2.0; later one),
// and few ranks open a second. Not only ranks may ask for something.
constexpr size_t kMostPerRank = 64;
constexpr size_t kMostBesides = 64;
// Of all connections, of requests that are not whole and answers that are not read.
constexpr size_t kMostHeld = 256 << 20;

}  // namespace

bool TcpServer::MakeRoom(const Admission::Guest& guest) {
  Node& node = nodes_[guest.node];
  const size_t most = guest.ranks * kMostPerRank + kMostBesides;
  if (node.sessions < most) return true;
  reports_.refused(absl::StrCat("some connections from ", guest.address, ", which has ", most,
                                " already; those that never said anything go first"));
  if (node.silent.empty()) return false;
  const std::shared_ptr<TcpSession> oldest = clients_.at(*node.silent.begin()).session;
  oldest->Close();
  return true;
}

void TcpServer::Serve(StreamSocket socket, const Admission::Guest& guest, loop::Task over) {
  if (!MakeRoom(guest)) return over();
  const TcpStore::Client id = ++last_client_;
  TcpSession::Hooks hooks;
  hooks.on_request = [this, id](TcpRequest request) { return OnRequest(id, std::move(request)); };
  hooks.on_held = [this](ptrdiff_t change) {
    held_ += static_cast<size_t>(change);
    return change <= 0 || held_ <= kMostHeld;
  };
  hooks.on_over = [this, id](const absl::Status& why) { OnOver(id, why); };
  auto session = std::make_shared<TcpSession>(loop_, std::move(socket), std::move(hooks));
  clients_[id] = {session, guest.node, guest.address, std::move(over)};
  ++nodes_[guest.node].sessions;
  nodes_[guest.node].silent.insert(id);
  session->Start();
}

absl::Status TcpServer::OnRequest(TcpStore::Client from, TcpRequest request) {
  // A client that has only greeted connects again, if this process dies.
  if (request.op != TcpOp::kValidate && request.op != TcpOp::kPing) reports_.used();
  nodes_[clients_.at(from).node].silent.erase(from);
  TcpStore::Outcome outcome = store_.Handle(from, std::move(request));
  for (const TcpStore::Reply& reply : outcome.replies) {
    const auto client = clients_.find(reply.to);
    if (client == clients_.end()) continue;  // closed over an answer before
    const std::shared_ptr<TcpSession> session = client->second.session;
    session->Send(*reply.bytes);
  }
  return std::move(outcome.refused);
}

void TcpServer::OnOver(TcpStore::Client id, const absl::Status& why) {
  auto client = clients_.extract(id);
  store_.Leave(id);
  Node& node = nodes_[client.mapped().node];
  --node.sessions;
  node.silent.erase(id);
  if (!why.ok()) {
    reports_.refused(absl::StrCat("a client at ", client.mapped().address,
                                  " and closed its connection: ", std::string(why.message())));
  }
  client.mapped().over();
}

}  // namespace dtrain::stores
