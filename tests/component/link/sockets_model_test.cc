// SPDX-License-Identifier: Apache-2.0
// Two cores in two threads, each with its loop, and between them sockets that break after any byte.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/link/link_core.h"
#include "common/link/socket_carrier.h"
#include "common/loop/loop.h"
#include "common/os/fd.h"

namespace dtrain::link {
namespace {

using SteadyClock = std::chrono::steady_clock;
constexpr auto kModelDeadline = std::chrono::seconds(60);

// One end with its thread. All but OnLoop runs there.
class Peer {
 public:
  Peer(uint64_t epoch, const Caps& out, const Caps& in, uint32_t seed)
      : random_(seed), tick_(loop_) {
    LinkCore::Options options;
    options.epoch = epoch;
    options.out = out;
    options.in = in;
    options.beat = std::chrono::milliseconds(300);
    core_.emplace(options);
    thread_ = std::thread([this] { loop_.Run(); });
  }
  ~Peer() {
    loop_.Post([this] {
      carrier_.reset();
      tick_.Cancel();
      loop_.Stop();
    });
    thread_.join();
  }

  template <typename Result>
  Result OnLoop(std::function<Result()> task) {
    std::promise<Result> done;
    loop_.Post([&] { done.set_value(task()); });
    return done.get_future().get();
  }
  // Of the connection that Open began.
  std::future<void> Closed() { return closed_.get_future(); }

  Party Owed() { return core_->Owed(); }
  absl::Status Open(const Party& party, os::UniqueFd socket) {
    closed_ = std::promise<void>();
    absl::Status opened = core_->Open(loop_.Now(), party);
    if (!opened.ok()) return opened;
    carrier_ =
        std::make_unique<SocketCarrier>(loop_, std::move(socket),
                                        CarrierHandlers{[this] { return core_->Next(loop_.Now()); },
                                                        [this](Frame frame) { OnFrame(frame); },
                                                        [this](absl::Status) {
                                                          core_->Close();
                                                          tick_.Cancel();
                                                          closed_.set_value();
                                                        }});
    Pump();
    return opened;
  }
  // Says some more, connected or not.
  bool Say(int messages) {
    for (int i = 0; i < messages; ++i) {
      const size_t most = Pick(20) == 0 ? 300'000 : 2000;
      std::string text = absl::StrCat(sent_.size(), ":");
      text.resize(text.size() + Pick(most), static_cast<char>('a' + Pick(26)));
      if (core_->room() < text.size()) break;
      if (!core_->Send(SharedBytes(text)).ok()) return false;
      sent_.push_back(std::move(text));
      core_->SendUnkept(Pick(kKinds), SharedBytes("state")).IgnoreError();
    }
    if (carrier_ != nullptr) Pump();
    return true;
  }
  void Drop() { carrier_.reset(); }
  std::future<void> Drained(size_t expected) {
    expected_ = expected;
    CheckDrained();
    return drained_.get_future();
  }
  std::vector<std::string> sent() { return sent_; }
  std::vector<std::string> got() { return got_; }
  absl::Status broken() { return broken_; }

 private:
  uint32_t Pick(size_t below) {
    return std::uniform_int_distribution<uint32_t>(0, static_cast<uint32_t>(below - 1))(random_);
  }
  void OnFrame(const Frame& frame) {
    auto message = core_->OnFrame(loop_.Now(), frame);
    if (!message.ok()) {
      broken_.Update(message.status());
      return;
    }
    if (frame.header.keep && message->has_value()) got_.emplace_back((*message)->view());
    Pump();
    CheckDrained();
  }
  void Pump() {
    carrier_->Pump();
    tick_.At(core_->NextDeadline(), [this] { Pump(); });
  }
  void CheckDrained() {
    if (!expected_ || got_.size() < *expected_ || core_->kept_bytes() > 0) return;
    expected_.reset();
    drained_.set_value();
  }

  loop::Loop loop_;
  std::mt19937 random_;
  std::optional<LinkCore> core_;
  std::unique_ptr<SocketCarrier> carrier_;
  loop::Timer tick_;
  std::promise<void> closed_;
  std::promise<void> drained_;
  std::optional<size_t> expected_;
  std::vector<std::string> sent_;
  std::vector<std::string> got_;
  absl::Status broken_;
  std::thread thread_;
};

class SocketsModel : public ::testing::Test {
 protected:
  // A connection between the two; what is between are the ends that are ours.
  void Connect() {
    auto left = os::SocketPair();
    auto right = os::SocketPair();
    ASSERT_TRUE(left.ok() && right.ok());
    left_ = std::move(left->first);
    right_ = std::move(right->first);
    const Party of_left = one_->OnLoop<Party>([&] { return one_->Owed(); });
    const Party of_right = other_->OnLoop<Party>([&] { return other_->Owed(); });
    ASSERT_TRUE(
        other_->OnLoop<bool>([&] { return other_->Open(of_left, std::move(right->second)).ok(); }));
    ASSERT_TRUE(
        one_->OnLoop<bool>([&] { return one_->Open(of_right, std::move(left->second)).ok(); }));
  }
  // Passes on so many bytes, in pieces of any size, or until `done`.
  void PassOn(size_t bytes, const std::function<bool()>& done) {
    const auto deadline = SteadyClock::now() + kModelDeadline;
    std::vector<char> buffer(16 << 10);
    while (bytes > 0 && !done()) {
      ASSERT_LT(SteadyClock::now(), deadline);
      pollfd ready[] = {{left_.get(), POLLIN, 0}, {right_.get(), POLLIN, 0}};
      if (poll(ready, 2, 20) <= 0) continue;
      for (int i = 0; i < 2 && bytes > 0; ++i) {
        if ((ready[i].revents & POLLIN) == 0) continue;
        const size_t most = std::min({bytes, buffer.size(), size_t{1} + Pick(buffer.size())});
        const ssize_t n = read(ready[i].fd, buffer.data(), most);
        if (n <= 0) continue;
        bytes -= static_cast<size_t>(n);
        for (ssize_t written = 0; written < n;) {
          const ssize_t w = send(ready[1 - i].fd, buffer.data() + written,
                                 static_cast<size_t>(n - written), MSG_NOSIGNAL);
          if (w < 0) return;
          written += w;
        }
      }
    }
  }
  uint32_t Pick(size_t below) {
    return std::uniform_int_distribution<uint32_t>(0, static_cast<uint32_t>(below - 1))(random_);
  }

  std::mt19937 random_;
  std::unique_ptr<Peer> one_;
  std::unique_ptr<Peer> other_;
  os::UniqueFd left_;
  os::UniqueFd right_;
};

TEST_F(SocketsModel, EachMessageArrivesOnceThroughAHundredBreaks) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  random_.seed(seed);
  one_ = std::make_unique<Peer>(1, kToShepherd, kToLauncher, seed + 1);
  other_ = std::make_unique<Peer>(2, kToLauncher, kToShepherd, seed + 2);
  for (int connection = 0; connection < 100; ++connection) {
    for (Peer* peer : {one_.get(), other_.get()}) {
      ASSERT_TRUE(peer->OnLoop<bool>([&] { return peer->Say(10); }));
    }
    Connect();
    ASSERT_FALSE(HasFatalFailure());
    std::future<void> closed[] = {
        one_->OnLoop<std::future<void>>([&] { return one_->Closed(); }),
        other_->OnLoop<std::future<void>>([&] { return other_->Closed(); })};
    for (Peer* peer : {one_.get(), other_.get()}) {
      ASSERT_TRUE(peer->OnLoop<bool>([&] { return peer->Say(10); }));
    }
    // Some breaks come within the first frames, others after a window or two.
    const size_t bytes = Pick(3) == 0 ? Pick(200) : Pick(1 << 20);
    const auto until = SteadyClock::now() + std::chrono::milliseconds(100);
    PassOn(bytes, [&] { return SteadyClock::now() > until; });
    left_.Reset();
    right_.Reset();
    for (std::future<void>& end : closed) {
      ASSERT_EQ(end.wait_for(kModelDeadline), std::future_status::ready);
    }
    for (Peer* peer : {one_.get(), other_.get()}) {
      const absl::Status broken = peer->OnLoop<absl::Status>([&] { return peer->broken(); });
      ASSERT_TRUE(broken.ok()) << broken;
      peer->OnLoop<bool>([&] {
        peer->Drop();
        return true;
      });
    }
  }
  Connect();
  ASSERT_FALSE(HasFatalFailure());
  const auto sent_by = [](Peer& peer) {
    return peer.OnLoop<std::vector<std::string>>([&] { return peer.sent(); });
  };
  const auto got_by = [](Peer& peer) {
    return peer.OnLoop<std::vector<std::string>>([&] { return peer.got(); });
  };
  const auto by_one = sent_by(*one_), by_other = sent_by(*other_);
  std::future<void> ends[] = {
      one_->OnLoop<std::future<void>>([&] { return one_->Drained(by_other.size()); }),
      other_->OnLoop<std::future<void>>([&] { return other_->Drained(by_one.size()); })};
  PassOn(SIZE_MAX, [&] {
    return std::all_of(std::begin(ends), std::end(ends), [](std::future<void>& end) {
      return end.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    });
  });
  ASSERT_FALSE(HasFatalFailure());
  EXPECT_TRUE(got_by(*other_) == by_one);
  EXPECT_TRUE(got_by(*one_) == by_other);
  EXPECT_GT(by_one.size(), 1000u);
}

// The whole of what a link may have on its way, while the other end has as much for us.
TEST_F(SocketsModel, BothSidesSpeakAtOnceAndNeitherWaitsForTheOther) {
  one_ = std::make_unique<Peer>(1, kToShepherd, kToLauncher, 1);
  other_ = std::make_unique<Peer>(2, kToLauncher, kToShepherd, 2);
  for (Peer* peer : {one_.get(), other_.get()}) {
    ASSERT_TRUE(peer->OnLoop<bool>([&] { return peer->Say(1000); }));
  }
  auto pair = os::SocketPair();
  ASSERT_TRUE(pair.ok());
  const Party of_one = one_->OnLoop<Party>([&] { return one_->Owed(); });
  const Party of_other = other_->OnLoop<Party>([&] { return other_->Owed(); });
  ASSERT_TRUE(
      other_->OnLoop<bool>([&] { return other_->Open(of_one, std::move(pair->first)).ok(); }));
  ASSERT_TRUE(
      one_->OnLoop<bool>([&] { return one_->Open(of_other, std::move(pair->second)).ok(); }));
  const auto count = [](Peer& peer) {
    return peer.OnLoop<size_t>([&] { return peer.sent().size(); });
  };
  const size_t by_one = count(*one_), by_other = count(*other_);
  std::future<void> ends[] = {
      one_->OnLoop<std::future<void>>([&] { return one_->Drained(by_other); }),
      other_->OnLoop<std::future<void>>([&] { return other_->Drained(by_one); })};
  for (std::future<void>& end : ends) {
    ASSERT_EQ(end.wait_for(kModelDeadline), std::future_status::ready);
  }
  EXPECT_GT(by_one, 500u);
}

}  // namespace
}  // namespace dtrain::link
