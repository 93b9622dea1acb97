// SPDX-License-Identifier: Apache-2.0
#include "runtime/net/mesh.h"

#include <gloo/context.h>
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/tcp/address.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "runtime/base/signal_guard.h"
#include "runtime/net/gloo_errors.h"

namespace dtrain::runtime {

// A gloo::Context that is connected by us: Gloo's own rendezvous fetches all addresses of all
// ranks, one store key at a time, and cannot say whom it is waiting for.
class Mesh::Context : public gloo::Context {
 public:
  Context(int rank, int size, std::shared_ptr<gloo::transport::Device> device)
      : gloo::Context(rank, size) {
    device_ = std::move(device);
    transportContext_ = device_->createContext(rank, size);
  }
  gloo::transport::Context& transport() { return *transportContext_; }
};

struct MeshBuffer::Gloo {
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
};

namespace {

using Milliseconds = std::chrono::milliseconds;

// For one connection, once every rank listens: a firewall that drops packets shows after this.
constexpr Milliseconds kConnectPatience = std::chrono::seconds(60);
// For the kernel to take the reason of a failure; a peer that is stopped does not read it.
constexpr Milliseconds kNoticePatience{200};

// For another member's reason to arrive where one connection has broken already.
constexpr Milliseconds kRumourPatience{300};
constexpr Milliseconds kGlance{10};
// What Gloo tells the other waits of this process when one has timed out, which is not their
// matter.
constexpr std::string_view kOwnTimeout = "Application timeout";

constexpr Milliseconds kForever = std::chrono::hours(24 * 3650);

constexpr size_t kNoticeBytes = 1024;
// Tags that no collective uses: those have their highest bit clear.
constexpr uint64_t kNoticeTag = ~uint64_t{0};
constexpr uint64_t kProbeTag = kNoticeTag - 1;
constexpr uint64_t kLeaverTag = kNoticeTag - 2;

struct LeaverNotice {
  uint32_t rank;
  uint32_t runs;
  uint32_t here;  // 1; the last of its bytes to come
};

Milliseconds Left(Deadline deadline) {
  const auto left =
      std::chrono::duration_cast<Milliseconds>(deadline - std::chrono::steady_clock::now());
  return std::max(left, Milliseconds(1));
}

uint16_t ListeningPort(const gloo::transport::Address& address) {
  return PortOf(gloo::transport::tcp::Address(address.bytes()).getSockaddr());
}

}  // namespace

MeshBuffer::MeshBuffer(Mesh& mesh, std::unique_ptr<Gloo> gloo)
    : mesh_(mesh), gloo_(std::move(gloo)) {}
MeshBuffer::~MeshBuffer() {
  (void)Catch([&] { gloo_.reset(); });
}

MaybeError MeshBuffer::Send(int peer, uint64_t tag, size_t offset, size_t bytes) {
  ++sends_;
  return mesh_.Attempt([&] { gloo_->buffer->send(peer, tag, offset, bytes); });
}

MaybeError MeshBuffer::Receive(int peer, uint64_t tag, size_t offset, size_t bytes) {
  ++receives_;
  return mesh_.Attempt([&] { gloo_->buffer->recv(peer, tag, offset, bytes); });
}

MaybeError MeshBuffer::Await(Deadline deadline) {
  if (sends_ + receives_ == 0) return std::nullopt;
  if (MaybeError error = mesh_.SetAwaited(this)) return error;
  MaybeError error = mesh_.Attempt([&] {
    // False: interrupted.
    for (; receives_ > 0; --receives_) {
      if (!gloo_->buffer->waitRecv(Left(deadline))) return;
    }
    for (; sends_ > 0; --sends_) {
      if (!gloo_->buffer->waitSend(Left(deadline))) return;
    }
  });
  const MaybeError interrupted = mesh_.SetAwaited(nullptr);
  return error ? error : interrupted;
}

Mesh::Mesh(int node, std::vector<int> leaders) : node_(node), leaders_(std::move(leaders)) {}

Mesh::~Mesh() {
  SigpipeGuard guard;
  const std::lock_guard<std::mutex> lock(abort_mutex_);
  incoming_.reset();
  outgoing_.reset();
  (void)Catch([&] { context_.reset(); });
}

Result<std::unique_ptr<Mesh>> Mesh::Make(int node, std::vector<int> leaders, const std::string& ip,
                                         Deadline deadline) {
  std::unique_ptr<Mesh> mesh(new Mesh(node, std::move(leaders)));
  const auto error = Catch([&] {
    gloo::transport::tcp::attr attributes;
    attributes.hostname = ip;
    std::shared_ptr<gloo::transport::Device> device;
    {
      AllSignalsBlocked blocked;
      device = gloo::transport::tcp::CreateDevice(attributes);
    }
    mesh->context_ = std::make_shared<Context>(node, mesh->nodes(), device);
    gloo::transport::Context& transport = mesh->context_->transport();
    // Fixed when a pair is made; a pair waits five times this long for its connection.
    const auto patience = std::min(Left(deadline), kConnectPatience) / 5;
    transport.setTimeout(std::max(patience, Milliseconds(1)));
    mesh->endpoint_.ip = ip;
    for (int peer = 0; peer < mesh->nodes(); ++peer) {
      const bool self = peer == node;
      mesh->endpoint_.ports.push_back(self ? 0
                                           : ListeningPort(transport.createPair(peer)->address()));
    }
  });
  if (error) {
    return Error{error->code, "cannot listen on " + Printable(ip) + ": " + error->message};
  }
  auto streams = Streams::Make(node, mesh->leaders_, ip);
  if (!streams.ok()) return streams.error();
  mesh->streams_ = std::move(*streams);
  mesh->endpoint_.ports[static_cast<size_t>(node)] = mesh->streams_->port();
  return mesh;
}

MaybeError Mesh::Connect(const std::vector<Endpoint>& endpoints, Deadline deadline) {
  SigpipeGuard guard;
  for (int peer = 0; peer < nodes(); ++peer) {
    if (peer == node_) continue;
    const Endpoint& endpoint = endpoints[static_cast<size_t>(peer)];
    const uint16_t port = endpoint.ports[static_cast<size_t>(node_)];
    const std::string where = "rank " + std::to_string(leaders_[static_cast<size_t>(peer)]) +
                              " at " + Printable(endpoint.ip) + " port " + std::to_string(port);
    if (std::chrono::steady_clock::now() >= deadline) {
      return Error{DTRAIN_ERROR_TIMEOUT, "no time was left to connect to " + where};
    }
    const auto address = SocketAddress(endpoint.ip, port);
    if (!address) return Error{DTRAIN_ERROR_LAUNCHER, where + ": not a numeric address"};
    const auto error = Catch([&] {
      const gloo::transport::tcp::Address target(*address);
      context_->getPair(peer)->connect(target.bytes());
    });
    if (!error) continue;
    return Error{error->code, "cannot connect to " + where + " from " + endpoint_.ip + ": " +
                                  error->message +
                                  "; is that process still running, and may these two addresses "
                                  "talk to each other?"};
  }
  const Deadline patience = std::chrono::steady_clock::now() + kConnectPatience;
  if (MaybeError error = streams_->Connect(endpoints, std::min(deadline, patience))) return error;
  ExpectNotices();
  return std::nullopt;
}

std::unique_ptr<MeshBuffer> Mesh::Register(void* data, size_t bytes) {
  auto gloo = std::make_unique<MeshBuffer::Gloo>();
  gloo->buffer = context_->createUnboundBuffer(data, bytes);
  return std::unique_ptr<MeshBuffer>(new MeshBuffer(*this, std::move(gloo)));
}

MaybeError Mesh::Await(Flight& flight, Deadline deadline) {
  if (MaybeError error = SetAwaited(nullptr)) return error;
  MaybeError error = streams_->Await(flight, deadline);
  if (!error) return std::nullopt;
  if (MaybeError interrupted = SetAwaited(nullptr)) return interrupted;
  return Explain(*error);
}

template <typename Call>
MaybeError Mesh::Attempt(Call call) {
  auto error = Catch(call);
  if (!error) return std::nullopt;
  if (MaybeError notice = Notice()) return notice;
  if (error->code != DTRAIN_ERROR_NETWORK) return error;
  error->message = "lost the connection to " + NameLost() + " (" + error->message + ")";
  return Explain(*error);
}

Error Mesh::Explain(Error error) {
  // A member that closes its connections has told everybody why; a dead one has not.
  for (auto left = kRumourPatience; left.count() > 0; left -= kGlance) {
    if (MaybeError notice = Notice()) return *notice;
    if (error.code != DTRAIN_ERROR_NETWORK) break;
    std::this_thread::sleep_for(kGlance);
  }
  return error;
}

void Mesh::ExpectNotices() {
  notices_.resize(static_cast<size_t>(nodes()) * (kNoticeBytes + sizeof(LeaverNotice)));
  leaver_taken_.resize(static_cast<size_t>(nodes()));
  incoming_ = Register(notices_.data(), notices_.size());
  for (int peer = 0; peer < nodes(); ++peer) {
    if (peer == node_) continue;
    (void)incoming_->Receive(peer, kNoticeTag, static_cast<size_t>(peer) * kNoticeBytes,
                             kNoticeBytes);
    (void)incoming_->Receive(peer, kLeaverTag, LeaverAt(peer), sizeof(LeaverNotice));
  }
}

size_t Mesh::LeaverAt(int peer) const {
  return static_cast<size_t>(nodes()) * kNoticeBytes +
         static_cast<size_t>(peer) * sizeof(LeaverNotice);
}

bool Mesh::TakeLeaver(int peer, Leaver& leaver) {
  LeaverNotice notice;
  std::memcpy(&notice, notices_.data() + LeaverAt(peer), sizeof(notice));
  if (notice.here != 1 || leaver_taken_[static_cast<size_t>(peer)]) return false;
  leaver_taken_[static_cast<size_t>(peer)] = true;
  leaver = {static_cast<int>(notice.rank & INT32_MAX), notice.runs};
  return true;
}

// A notice is a status code and a text that ends with NUL.
bool Mesh::TakeNotice(int last) {
  for (int step = 0; step < nodes(); ++step) {
    const int peer = (last + step) % nodes();
    const char* notice = notices_.data() + static_cast<size_t>(peer) * kNoticeBytes;
    if (notice[0] == 0) continue;
    const char* end = std::find(notice + 1, notice + kNoticeBytes, '\0');
    const std::lock_guard<std::mutex> lock(wait_mutex_);
    const bool known = notice[0] > DTRAIN_OK && notice[0] <= DTRAIN_ERROR_DEVICE;
    std::string text(notice + 1, end);
    for (char& c : text) {
      if (c < 0x20 || c > 0x7e) c = '?';
    }
    notice_ = Error{known ? static_cast<dtrain_status>(notice[0]) : DTRAIN_ERROR_NETWORK, text};
    return true;
  }
  return false;
}

void Mesh::TellLeaving(const Leaver& leaver) {
  const std::lock_guard<std::mutex> lock(abort_mutex_);
  if (aborted_.load() || outgoing_ != nullptr) return;
  SigpipeGuard guard;
  const LeaverNotice notice{static_cast<uint32_t>(leaver.rank), leaver.runs, 1};
  leaver_.resize(sizeof(notice));
  std::memcpy(leaver_.data(), &notice, sizeof(notice));
  // Whom it does not reach has a broken connection, which is news enough.
  for (int peer = 0; peer < nodes(); ++peer) {
    if (peer == node_) continue;
    (void)Catch([&] {
      if (outgoing_ == nullptr) outgoing_ = Register(leaver_.data(), leaver_.size());
      outgoing_->gloo_->buffer->send(peer, kLeaverTag, 0, leaver_.size());
    });
  }
}

MaybeError Mesh::Notice() {
  const std::lock_guard<std::mutex> lock(wait_mutex_);
  return notice_;
}

MaybeError Mesh::Listen(const std::function<void(const Leaver&)>& hear) {
  MaybeError broken;
  int came = 0, leavers = 0;  // messages
  for (auto left = kRumourPatience; !stopping_.load() && left.count() > 0;) {
    int peer = -1;
    broken = Catch([&] {
      if (!incoming_->gloo_->buffer->waitRecv(&peer, kForever)) peer = -1;
    });
    if (!broken && peer < 0) return std::nullopt;
    if (!broken) {
      ++came;
      for (int other = 0; other < nodes(); ++other) {
        Leaver leaver;
        if (!TakeLeaver(other, leaver)) continue;
        hear(leaver);
        ++leavers;
      }
      // Gloo tells who has sent the last of what has come, which may be more than one message.
      if (came > leavers && TakeNotice(peer)) return Notice();
      continue;
    }
    if (broken->message.find(kOwnTimeout) != std::string::npos) return std::nullopt;
    // A member that closes its connections has told everybody why; a dead one has not.
    std::this_thread::sleep_for(kGlance);
    left -= kGlance;
  }
  if (stopping_.load()) return std::nullopt;
  broken->message = "lost the connection to " + NameLost() + " (" + broken->message + ")";
  return broken;
}

void Mesh::StopListening() {
  stopping_.store(true);
  if (incoming_ != nullptr) incoming_->gloo_->buffer->abortWaitRecv();
}

void Mesh::Close() {
  SigpipeGuard guard;
  streams_->Shutdown();
  (void)Catch([&] { context_->closeConnections(); });
}

MaybeError Mesh::SetAwaited(MeshBuffer* buffer) {
  const std::lock_guard<std::mutex> lock(wait_mutex_);
  awaited_ = buffer;
  return interrupted_;
}

void Mesh::Interrupt(const Error& reason) {
  const std::lock_guard<std::mutex> lock(wait_mutex_);
  if (!interrupted_) interrupted_ = reason;
  streams_->Interrupt();
  if (awaited_ == nullptr) return;
  awaited_->gloo_->buffer->abortWaitRecv();
  awaited_->gloo_->buffer->abortWaitSend();
}

void Mesh::Abort(const Error& reason) {
  Interrupt(reason);
  const std::lock_guard<std::mutex> lock(abort_mutex_);
  if (aborted_.exchange(true)) return;
  SigpipeGuard guard;
  std::vector<char> notice(kNoticeBytes);
  notice[0] = static_cast<char>(reason.code);
  std::memcpy(notice.data() + 1, reason.message.data(),
              std::min(reason.message.size(), kNoticeBytes - 2));
  (void)Catch([&] {
    auto buffer = context_->createUnboundBuffer(notice.data(), notice.size());
    int sent = 0;
    for (int peer = 0; peer < nodes(); ++peer) {
      if (peer == node_) continue;
      const auto broken = Catch([&] { buffer->send(peer, kNoticeTag, 0, kNoticeBytes); });
      if (!broken) ++sent;
    }
    for (; sent > 0; --sent) buffer->waitSend(kNoticePatience);
  });
  // Closing drops what the kernel has not sent yet. Those who have read the reason close too.
  for (auto left = kNoticePatience; !Notice() && left.count() > 0; left -= kGlance) {
    if (static_cast<int>(Lost().size()) == nodes() - 1) break;
    std::this_thread::sleep_for(kGlance);
  }
  // Whoever waits for this node shall not wait until its own timeout.
  streams_->Shutdown();
  (void)Catch([&] { context_->closeConnections(); });
}

// Gloo does not say which rank an exception was about, but a broken connection refuses even an
// empty message. Called just before all connections are closed, so such messages do no harm.
std::vector<int> Mesh::Lost() {
  std::vector<int> lost;
  for (int peer = 0; peer < nodes(); ++peer) {
    if (peer == node_) continue;
    char nothing = 0;
    const auto broken = Catch([&] {
      auto buffer = context_->createUnboundBuffer(&nothing, 0);
      buffer->send(peer, kProbeTag, 0, 0);
    });
    if (broken) lost.push_back(leaders_[static_cast<size_t>(peer)]);
  }
  return lost;
}

std::string Mesh::NameLost() {
  std::string text;
  for (const int rank : Lost()) {
    text += (text.empty() ? "rank " : " and rank ") + std::to_string(rank);
  }
  return text.empty() ? "another rank" : text;
}

}  // namespace dtrain::runtime
