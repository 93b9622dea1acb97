// SPDX-License-Identifier: Apache-2.0
// Messages of a launcher and of a shepherd to one session of a resident agent, its books included,
// in any order and at any time.
#include <string>
#include <variant>

#include "agent/session/reservations.h"
#include "agent/session/session_core.h"
#include "tests/fuzz/expect.h"
#include "tests/fuzz/messages.h"

namespace {

using namespace dtrain::session;  // NOLINT: everything here is about it
using std::chrono::milliseconds;

dtrain::v1::Hello ValidHello() {
  dtrain::v1::Hello hello;
  hello.set_protocol(1);
  hello.set_build("b");
  hello.set_job_id("j");
  hello.set_lease_ms(1000);
  return hello;
}

class Agent {
 public:
  explicit Agent(SessionCore core) : core_(std::move(core)) {}

  void Feed(const Event& event) {
    const bool ended = core_.state() == SessionCore::State::kEnded;
    for (const Action& action : core_.OnEvent(now_, event)) {
      DTRAIN_CHECK(!ended);
      Carry(action);
    }
  }
  void Do(const dtrain::fuzz::Script::Step& step) {
    now_ += milliseconds(step.what >> 4);
    switch (step.what & 15) {
      case 0:
        return Parsed<dtrain::v1::SessionRequest>(step, [this](auto m) { Feed(Request{m}); });
      case 1:
        return Feed(JobFrame{step.message.size() % 2 == 0, true});
      case 2:
        return Parsed<dtrain::v1::Hello>(step, [this](auto m) {
          if (core_.CanResume(m)) Feed(Resumed{m});
        });
      case 3:
        return Feed(LauncherGone{});
      case 4:
        return Feed(ShepherdGone{"killed"});
      case 5:
        return Feed(LeftoversGone{});
      case 6:
        return Parsed<dtrain::v1::Inventory>(step, [this](auto m) {
          reservations_.Mark(nullptr, m);
          Feed(GpusSeen{{m.gpus().begin(), m.gpus().end()}, "", {}});
        });
      case 7: {
        dtrain::v1::SessionRequest request;
        *request.mutable_hello() = ValidHello();
        return Feed(Request{request});
      }
      case 8:
        return Parsed<dtrain::v1::Finished>(step, [this](auto m) { Feed(JobEnded{m}); });
      case 9:
        return Feed(ShepherdAnswers{});
      case 10:
        return Feed(LauncherBroke{absl::DataLossError("a gap")});
      default:
        now_ = std::max(now_, std::min(core_.NextDeadline(), now_ + std::chrono::hours(1)));
        return Feed(Tick{});
    }
  }

 private:
  template <typename Message, typename F>
  static void Parsed(const dtrain::fuzz::Script::Step& step, F f) {
    Message message;
    if (message.ParseFromArray(step.message.data(), static_cast<int>(step.message.size()))) {
      f(std::move(message));
    }
  }
  void Carry(const Action& action) {
    if (const auto* reserve = std::get_if<ReserveShare>(&action)) {
      if (auto share = ShareOf(reserve->reserve); share.ok()) {
        reservations_.Reserve(this, "job j of alice", *share).IgnoreError();
        // Asked for by another, so that there is something to refuse.
        reservations_.Reserve(&core_, "job k of bob", *std::move(share)).IgnoreError();
      }
    } else if (const auto* give = std::get_if<GiveBack>(&action)) {
      reservations_.Release(this);
      reservations_.Withhold("job j of alice", give->gpus);
    }
  }

  dtrain::TimePoint now_{std::chrono::seconds(1000)};
  SessionCore core_;
  Reservations reservations_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  dtrain::fuzz::Script script(dtrain::fuzz::Text(data, size));
  dtrain::fuzz::Script::Step step;
  const Identity self{1, "b", true};
  const dtrain::TimePoint start{std::chrono::seconds(1000)};
  if (!script.Next(step)) return 0;
  dtrain::v1::Account account;
  const bool adopted =
      step.what == 'a' &&
      account.ParseFromArray(step.message.data(), static_cast<int>(step.message.size()));
  Agent agent(adopted ? SessionCore(self, start, account, {{"GPU-0"}, {17}})
                      : SessionCore(self, start));
  while (script.Next(step)) agent.Do(step);
  return 0;
}
