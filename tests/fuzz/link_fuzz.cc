// SPDX-License-Identifier: Apache-2.0
// What a peer that is not ours sends on a link. Bit 0 of the first byte: one whose successor is
// taken; bit 1: the rest is a list of steps for the core, whose frames are valid but say anything.
// Otherwise the rest is a stream, cut into pieces by the second byte.
#include <chrono>
#include <optional>
#include <string>

#include "common/link/link_core.h"
#include "common/link/log_frame.h"
#include "tests/fuzz/expect.h"

namespace {

using dtrain::TimePoint;
using dtrain::link::Frame;
using dtrain::link::LinkCore;
using dtrain::link::SharedBytes;
using State = LinkCore::State;

constexpr dtrain::link::Caps kSmall{100, 300, 2000, 10};

// What must hold however the peer behaves.
class Link {
 public:
  explicit Link(bool forgets) : budget_(3000), core_(Options(forgets, &budget_)) {
    for (size_t size : {5, 30, 0})
      DTRAIN_CHECK(core_.Send(SharedBytes(std::string(size, 'x'))).ok());
  }
  ~Link() {
    Check();
    if (core_.state() != State::kUp) return;
    core_.Close();
    DTRAIN_CHECK(core_.Open(now_, {peer_, 1, core_.given()}).ok());
  }

  void Open(uint8_t epoch, uint8_t of, uint64_t received) {
    const absl::Status opened = core_.Open(now_, {epoch, of, received});
    DTRAIN_CHECK(opened.ok() == (core_.state() == State::kUp));
    if (!opened.ok()) dtrain::fuzz::ExpectPrintable(opened);
    begun_ = core_.given();
    peer_ = epoch;
    Check();
  }
  void Take(const Frame& frame) {
    if (auto output = dtrain::link::DecodeLogFrame(frame); !output.ok()) {
      dtrain::fuzz::ExpectPrintable(output.status());
    } else {
      DTRAIN_CHECK(output->data.size() <= dtrain::link::kMostLogData);
      DTRAIN_CHECK(output->head.has_at() == (output->data.size() > 0));
    }
    const State before = core_.state();
    const uint64_t received = core_.received();
    auto message = core_.OnFrame(now_, frame);
    if (!message.ok()) {
      dtrain::fuzz::ExpectPrintable(message.status());
      DTRAIN_CHECK(core_.state() == State::kLost || core_.state() == State::kFull);
    } else {
      DTRAIN_CHECK(before == State::kUp && core_.state() == State::kUp);
      DTRAIN_CHECK(core_.received() == received || core_.received() == received + 1);
      if (message->has_value() && frame.header.keep) {
        DTRAIN_CHECK(core_.received() == received + 1);
        DTRAIN_CHECK((*message)->size() <= kSmall.message);
      }
    }
    Check();
  }
  void Give() {
    while (std::optional<Frame> frame = core_.Next(now_)) {
      if (!frame->header.keep) continue;
      DTRAIN_CHECK(frame->header.sequence == ++begun_);
    }
    Check();
  }
  void Send(size_t size) {
    if (core_.room() >= size && core_.room() > 0) {
      const bool sent = core_.Send(SharedBytes(std::string(size, 'y'))).ok();
      DTRAIN_CHECK(sent == (size <= kSmall.message));
    }
    Check();
  }
  void SendUnkept(size_t kind) {
    const bool final = core_.state() == State::kLost || core_.state() == State::kFull;
    DTRAIN_CHECK(core_.SendUnkept(kind, SharedBytes("z")).ok() != final);
  }
  void Close() {
    core_.Close();
    DTRAIN_CHECK(core_.state() != State::kUp);
  }
  void Wait(uint8_t tenths) { now_ += std::chrono::milliseconds(100) * tenths; }

 private:
  static LinkCore::Options Options(bool forgets, dtrain::link::KeptBytes* budget) {
    LinkCore::Options options;
    options.epoch = 1;
    options.channel = dtrain::link::Channel::kAgent;
    options.out = kSmall;
    options.in = kSmall;
    options.forgets = forgets;
    options.beat = std::chrono::seconds(5);
    options.budget = budget;
    return options;
  }
  void Check() const {
    DTRAIN_CHECK(core_.acked() <= core_.given() && core_.given() <= core_.last());
    DTRAIN_CHECK(core_.kept_bytes() <= kSmall.kept);
    DTRAIN_CHECK(budget_.bytes() == core_.kept_bytes());
    DTRAIN_CHECK((core_.kept_bytes() == 0) == (core_.acked() == core_.last()));
    DTRAIN_CHECK(core_.state() == State::kUp || core_.NextDeadline() == dtrain::kNever);
  }

  TimePoint now_ = TimePoint(std::chrono::hours(1));
  dtrain::link::KeptBytes budget_;
  LinkCore core_;
  uint64_t peer_ = 0;
  uint64_t begun_ = 0;  // what was given last
};

void TakeStream(Link& link, absl::string_view bytes) {
  if (bytes.empty()) return;
  const size_t piece = 1 + static_cast<uint8_t>(bytes[0]);
  bytes.remove_prefix(1);
  link.Open(2, 0, 0);
  link.Give();
  dtrain::link::FrameReader reader;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    reader.Add(bytes.substr(at, piece));
    for (;;) {
      auto frame = reader.Next();
      if (!frame.ok()) return dtrain::fuzz::ExpectPrintable(frame.status());
      if (!frame->has_value()) break;
      link.Take(**frame);
      link.Give();
    }
  }
}

void TakeSteps(Link& link, absl::string_view bytes) {
  const auto next = [&bytes]() -> uint8_t {
    if (bytes.empty()) return 0;
    const uint8_t byte = static_cast<uint8_t>(bytes[0]);
    bytes.remove_prefix(1);
    return byte;
  };
  while (!bytes.empty()) {
    switch (next() % 8) {
      case 0: {
        const uint8_t epoch = next() % 4, of = next() % 4;
        link.Open(epoch, of, next());
        break;
      }
      case 1:
        link.Close();
        break;
      case 2:
        link.Give();
        break;
      case 3:
        link.Send(next());
        break;
      case 4:
        link.SendUnkept(next() % dtrain::link::kKinds);
        break;
      case 5:
        link.Wait(next());
        break;
      default: {
        Frame frame;
        const uint8_t flags = next();
        frame.header.keep = (flags & 3) != 0;
        frame.header.more = (flags & 3) == 2;
        frame.header.channel = static_cast<dtrain::link::Channel>((flags & 0x10) != 0 ? 1 : 0);
        frame.header.sequence = frame.header.keep ? next() : 0;
        frame.header.ack = next();
        frame.payload = SharedBytes(std::string(next(), 'p'));
        frame.header.size = static_cast<uint32_t>(frame.payload.size());
        const auto header = dtrain::link::EncodeHeader(frame.header);
        // Those that the codec refuses come to no core.
        if (dtrain::link::DecodeHeader({header.data(), header.size()}).ok()) link.Take(frame);
      }
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  Link link((data[0] & 1) != 0);
  const absl::string_view rest = dtrain::fuzz::Text(data + 1, size - 1);
  (data[0] & 2) != 0 ? TakeSteps(link, rest) : TakeStream(link, rest);
  return 0;
}
