// SPDX-License-Identifier: Apache-2.0
// Messages of two nodes to a launch, in any order and at any time.
#include <string>
#include <variant>

#include "launcher/job/job_core.h"
#include "tests/fuzz/expect.h"
#include "tests/fuzz/messages.h"

namespace {

using namespace dtrain::job;  // NOLINT: everything here is about it
using dtrain::NodeId;
using std::chrono::milliseconds;

JobCore MakeCore(uint8_t flags, dtrain::TimePoint now) {
  dtrain::hosts::HostList hosts;
  for (const char* name : {"node0", "node1"}) {
    hosts.entries.emplace_back().host = name;
    if (flags & 1) hosts.entries.back().slots = 2;
  }
  JobOptions options;
  options.build = "b";
  options.job_id = "j";
  options.incarnation = std::string(16, 'i');
  options.probe_token = std::string(32, 't');
  if (flags & 2) options.wait = std::chrono::minutes(1);
  if (flags & 4) options.plan.gpu_bind = dtrain::plan::GpuBind::kRank;
  options.dry_run = (flags & 8) != 0;
  return JobCore(std::move(hosts), std::move(options), now);
}

class Launch {
 public:
  explicit Launch(uint8_t flags) : core_(MakeCore(flags, now_)) {}

  void Feed(Event event) {
    const bool finished = core_.state() == State::kFinished;
    for (const Action& action : core_.OnEvent(now_, std::move(event))) {
      DTRAIN_CHECK(!finished);
      if (std::holds_alternative<Finish>(action)) {
        DTRAIN_CHECK(core_.state() == State::kFinished);
        DTRAIN_CHECK(core_.verdict().exit_code >= 0 && core_.verdict().exit_code <= 255);
      } else if (const auto* warn = std::get_if<Warn>(&action)) {
        // What nodes say must not reach a terminal as it is.
        for (char c : warn->text) DTRAIN_CHECK(c == '\n' || static_cast<unsigned char>(c) >= ' ');
      }
    }
  }
  void Do(const dtrain::fuzz::Script::Step& step) {
    now_ += milliseconds(step.what >> 4);
    const NodeId node(step.what & 1);
    switch (step.what >> 1 & 7) {
      case 0:
        return Feed(NodeConnected{node});
      case 1:
        return Feed(NodeClosed{node, absl::UnavailableError("reset")});
      case 2:
        return Feed(LogsDrained{node});
      case 3:
        now_ = std::max(now_, std::min(core_.NextDeadline(), now_ + std::chrono::hours(1)));
        return Feed(Tick{});
      default:
        break;
    }
    constexpr int64_t kWall = 1'700'000'000'000'000'000;
    const int size = static_cast<int>(step.message.size());
    ShepherdMessage shepherd{node, {}, kWall};
    AgentMessage agent{node, {}, kWall};
    if (!shepherd.event.ParseFromArray(step.message.data(), size)) return;
    if (!agent.event.ParseFromArray(step.message.data(), size)) return;
    // What both may say, either does.
    const bool is_agents = agent.event.kind_case() != dtrain::v1::SessionEvent::KIND_NOT_SET;
    const bool is_shepherds = shepherd.event.kind_case() != dtrain::v1::JobEvent::KIND_NOT_SET;
    if (is_shepherds && (!is_agents || (step.what & 2) != 0)) return Feed(std::move(shepherd));
    // One that would be refused for its words alone says nothing of what comes behind.
    if (agent.event.has_welcome()) {
      agent.event.mutable_welcome()->set_job_id("j");
      agent.event.mutable_welcome()->set_incarnation(std::string(16, 'i'));
    }
    Feed(std::move(agent));
  }

 private:
  dtrain::TimePoint now_{std::chrono::seconds(1000)};
  JobCore core_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  Launch launch(data[0]);
  dtrain::fuzz::Script script(dtrain::fuzz::Text(data + 1, size - 1));
  dtrain::fuzz::Script::Step step;
  while (script.Next(step)) launch.Do(step);
  return 0;
}
