// SPDX-License-Identifier: Apache-2.0
#include "launcher/runner.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <list>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/exit_code.h"
#include "common/os/signals.h"
#include "launcher/job/outcome.h"
#include "launcher/layout_of.h"
#include "launcher/plan/plan.h"
#include "launcher/report/collective_table.h"
#include "launcher/report/containers.h"
#include "launcher/report/failure_report.h"
#include "launcher/report/progress.h"
#include "launcher/report/result_json.h"
#include "launcher/report/trace.h"

namespace dtrain {
namespace {

// After Ctrl-C nobody waits for a terminal that takes nothing (Ctrl-S).
constexpr Duration kOutputWait = std::chrono::seconds(2);
// The two clocks that show a sleep are read one after the other, and one may be slewed.
constexpr Duration kShortSleep = std::chrono::milliseconds(200);

// Whose event it is, if one node's.
std::optional<NodeId> NodeOfEvent(const job::Event& event) {
  return std::visit(
      [](const auto& each) -> std::optional<NodeId> {
        if constexpr (requires { each.node; }) return each.node;
        return std::nullopt;
      },
      event);
}

}  // namespace

Runner::Runner(loop::Loop& loop, cli::LaunchOptions options)
    : loop_(loop),
      options_(std::move(options)),
      agent_(loop),
      ways_(loop, options_.transport, agent_),
      router_(loop, options_.output,
              {[this](absl::Status why) { Feed(job::OutputFailed{std::string(why.message())}); },
               [this](std::string text) { Warn(absl::StrCat("dtrain: warning: ", text)); }}),
      links_(loop, ways_, LinkHandlers()),
      progress_(
          loop, [this](TimePoint now) { return StatusLine(now); },
          [this](absl::string_view line) { router_.ShowStatus(line); }),
      deadline_(loop),
      leave_timer_(loop) {}

Runner::~Runner() = default;

int Runner::Run() {
  absl::Status prepared = Prepare();
  if (!prepared.ok()) {
    std::fprintf(stderr, "dtrain: %s\n", std::string(prepared.message()).c_str());
    if (absl::IsUnauthenticated(prepared)) return kExitNotAuthorised;
    return absl::IsInvalidArgument(prepared) ? kExitUsage : kExitStartAgents;
  }
  os::FailWritesWithoutSignals();
  std::list<loop::SignalWatch> watches;
  for (int number : os::NotIgnored({SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2})) {
    watches.emplace_back(loop_, std::initializer_list<int>{number},
                         [this](int signal) { OnSignal(signal); });
  }
  for (const std::string& warning : options_.hosts.warnings) Warn(warning);
  auto asked = options_.hosts.entries;
  asked.resize(core_->nodes().size());
  links_.Connect(asked);
  deadline_.At(core_->NextDeadline(), [this] { Feed(job::Tick{}); });
  loop_.Run();
  links_.Clear();
  status_.reset();
  return exit_code_;
}

NodeLinks::Handlers Runner::LinkHandlers() {
  NodeLinks::Handlers handlers;
  handlers.on_event = [this](job::Event event) { Feed(std::move(event)); };
  handlers.on_agent = [this](NodeId id, v1::SessionEvent event) {
    if (event.has_finished()) node_output_->OnFinished(id, event.finished());
    Feed(job::AgentMessage{id, std::move(event), WallNow()});
  };
  handlers.on_shepherd = [this](NodeId id, v1::JobEvent event) {
    OnJobEvent(id, std::move(event));
  };
  handlers.on_logs = [this](NodeId id, const v1::LogChunk& chunk) { OnLogs(id, chunk); };
  handlers.on_logs_end = [this](NodeId id, absl::Status why) { OnLogsEnd(id, std::move(why)); };
  handlers.on_left = [this] {
    if (finishing_) OnFinish();
  };
  return handlers;
}

// Actions may lead to further events at once; these wait until the actions are done.
void Runner::Feed(job::Event event) {
  events_.push_back(std::move(event));
  if (std::exchange(feeding_, true)) return;
  const Duration asleep = loop::Loop::TimeAsleep();
  const Duration slept = asleep - std::exchange(asleep_, asleep);
  if (slept > kShortSleep) {
    events_.push_front(job::Slept{slept});
  }
  while (!events_.empty()) {
    job::Event next = std::move(events_.front());
    events_.pop_front();
    TimePoint now = loop_.Now();
    if (timeline_ != nullptr) report::Trace(*timeline_, *core_, next, now);
    const std::optional<NodeId> of = NodeOfEvent(next);
    const job::State before = core_->state();
    for (job::Action& action : core_->OnEvent(now, std::move(next))) Do(action);
    if (timeline_ != nullptr && before < job::State::kStarting &&
        core_->state() == job::State::kStarting) {
      report::TraceMeeting(*timeline_, *core_, now);
    }
    slowest_.Observe(Facts(), of, now);
  }
  feeding_ = false;
  if (!options_.quiet) progress_.Update();
  if (!finishing_) deadline_.At(core_->NextDeadline(), [this] { Feed(job::Tick{}); });
}

void Runner::Do(job::Action& action) {
  if (auto* agent = std::get_if<job::ToAgent>(&action)) {
    links_.Send(*agent);
  } else if (auto* agents = std::get_if<job::ToAgents>(&action)) {
    links_.Send(*agents);
  } else if (auto* shepherd = std::get_if<job::ToShepherd>(&action)) {
    links_.Send(*shepherd);
  } else if (auto* shepherds = std::get_if<job::ToShepherds>(&action)) {
    links_.Send(*shepherds);
  } else if (auto* beat = std::get_if<job::Beat>(&action)) {
    links_.Send(*beat);
  } else if (auto* logs = std::get_if<job::OpenLogs>(&action)) {
    links_.OpenLogs(logs->node, options_.job.job_id, options_.job.attempt);
  } else if (auto* disconnect = std::get_if<job::Disconnect>(&action)) {
    links_.Disconnect(disconnect->node);
  } else if (auto* dial = std::get_if<job::DialAnew>(&action)) {
    links_.DialAnew(dial->node);
  } else if (auto* warn = std::get_if<job::Warn>(&action)) {
    if (warn->detail && !options_.verbose) {
      details_.push_back(std::move(warn->text));
    } else {
      Warn(warn->text);
    }
  } else if (std::holds_alternative<job::PlanReady>(action)) {
    OnPlan();
  } else if (std::holds_alternative<job::Finish>(action)) {
    OnFinish();
  }
}

void Runner::OnJobEvent(NodeId id, v1::JobEvent event) {
  if (event.has_stdin_taken() && stdin_ != nullptr) {
    stdin_->Taken(Rank(event.stdin_taken().rank()), event.stdin_taken().closed());
  }
  if (event.has_exit() && stdin_ != nullptr) stdin_->RankEnded(Rank(event.exit().rank()));
  if (event.has_finished()) node_output_->OnFinished(id, event.finished());
  if (event.has_started() && status_ != nullptr) {
    for (const v1::WorkerStarted& worker : event.started().workers()) {
      if (node_output_->IsOn(id, worker.rank()))
        status_->WorkerStarted(worker.rank(), worker.pid());
    }
  }
  Feed(job::ShepherdMessage{id, std::move(event), WallNow()});
  if (core_->state() == job::State::kRunning && stdin_ != nullptr &&
      !std::exchange(stdin_started_, true)) {
    stdin_->Start(options_.job.stdin_rank, core_->plan().world_size);
  }
}

// As the clock was when we began: one that is set while the job runs moves nothing.
int64_t Runner::WallNow() const {
  return begin_unix_nanos_ + std::chrono::nanoseconds(loop_.Now() - begin_).count();
}

void Runner::OnLogs(NodeId id, const v1::LogChunk& chunk) {
  if (!chunk.lost().empty()) {
    Warn(absl::StrCat(core_->nodes()[id.value()].host, ": ", job::Printable(chunk.lost())));
    return links_.NextLogs(id);
  }
  if (absl::Status taken = node_output_->Deliver(id, chunk); !taken.ok()) {
    return OnLogsFault(id, taken.message());
  }
  auto next = [this, id] { links_.NextLogs(id); };
  if (router_.Full()) {
    router_.WhenRoom(next);
  } else {
    next();
  }
}

void Runner::OnLogsEnd(NodeId id, absl::Status status) {
  if (status.ok()) {
    node_output_->OnDelivered(id);
    Feed(job::LogsDrained{id});
  } else if (absl::IsDataLoss(status)) {
    job::NodeClosed closed{id, std::move(status)};
    closed.output_lost = true;
    Feed(std::move(closed));
  } else if (!absl::IsUnavailable(status)) {
    // When it is, the whole stream broke, and NodeClosed comes with the reason.
    OnLogsFault(id, status.message());
  }
}

void Runner::OnLogsFault(NodeId id, absl::string_view why) {
  Feed(job::NodeClosed{id, absl::DataLossError(absl::StrCat("the logs cannot be read: ", why)),
                       /*unknown_host=*/false, /*not_authorised=*/false, /*started_anew=*/false});
}

void Runner::OnSignal(int signal) {
  if (finishing_) {
    // The agents still hear goodbye: else they would keep their sessions for us. The output that
    // is left nobody seems to want.
    unwanted_ = true;
    if (writing_) Leave();
    return;
  }
  Feed(job::UserSignal{signal});
}

void Runner::OnPlan() {
  router_.SetLayout(LayoutOf(core_->plan(), options_.job.job_id));
  if (status_ != nullptr) status_->logs().SetWorldSize(core_->plan().world_size);
  if (options_.job.dry_run || options_.verbose) {
    std::string table = plan::FormatRankTable(core_->plan());
    absl::StrAppend(&table, report::ContainerLines(options_.job.part));
    if (options_.job.dry_run) {
      std::fputs(table.c_str(), stdout);
    } else {
      router_.Say(table);
    }
  }
}

void Runner::Warn(absl::string_view text) {
  if (!options_.quiet) router_.Say(text);
}

report::JobFacts Runner::Facts() const { return report::FactsOf(*core_); }

std::string Runner::StatusLine(TimePoint now) {
  return report::ProgressLine(Facts(), now, report::TerminalWidth(STDERR_FILENO));
}

// Called when the job is over, and again as each connection ends.
void Runner::OnFinish() {
  if (!std::exchange(finishing_, true)) SayEnd();
  if (links_.leaving() > 0) return;
  WriteFiles();
  if (core_->verdict().kind == job::Verdict::Kind::kSignal) {
    leave_timer_.After(kOutputWait, [this] { Leave(); });
  }
  if (unwanted_) return Leave();
  writing_ = true;
  router_.Finish([this] {
    if (status_ == nullptr) return Leave();
    status_->Finish([this] { Leave(); });
  });
}

void Runner::SayEnd() {
  exit_code_ = core_->verdict().exit_code;
  deadline_.Cancel();
  progress_.Stop();
  stdin_.reset();
  router_.FlushLines();  // the report stays the last
  if (std::string text = report::FailureReport(Facts()); !text.empty()) router_.Say(text);
  if (exit_code_ == kExitCleanup || exit_code_ == kExitAgentLost) {
    for (const std::string& detail : details_) Warn(detail);
  }
  if (!options_.verbose) return;
  router_.Say(report::PhaseTable(Facts(), slowest_, loop_.Now()));
  if (std::string table = report::CollectiveTable(Facts()); !table.empty()) router_.Say(table);
}

// Once.
void Runner::WriteFiles() {
  if (timeline_ != nullptr) {
    absl::Status written = timeline_->Finish(Facts(), loop_.Now());
    if (!written.ok()) Warn(absl::StrCat("dtrain: ", written.message()));
    timeline_.reset();
  }
  if (options_.result_json.empty()) return;
  absl::Status written = report::WriteResult(
      options_.result_json, report::ResultJson(Facts(), options_.job.job_id, loop_.Now()));
  if (!written.ok()) {
    router_.Say(absl::StrCat("dtrain: ", written.message()));
    if (exit_code_ == kExitOk) exit_code_ = kExitState;
  }
  options_.result_json.clear();
}

void Runner::Leave() { loop_.Stop(); }

}  // namespace dtrain
