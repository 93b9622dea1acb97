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

namespace dtrain {
namespace {

// An agent that was said goodbye closes the stream when it has ended its session.
constexpr Duration kGoodbyeWait = std::chrono::seconds(1);
// After Ctrl-C nobody waits for a terminal that takes nothing (Ctrl-S).
constexpr Duration kOutputWait = std::chrono::seconds(2);
// The two clocks that show a sleep are read one after the other, and one may be slewed.
constexpr Duration kShortSleep = std::chrono::milliseconds(200);

const char* PhaseText(transport::Phase phase) {
  switch (phase) {
    case transport::Phase::kConnecting:
      return "connection";
    case transport::Phase::kAuthenticating:
      return "authentication";
    case transport::Phase::kStartingAgent:
      return "start of the agent";
    case transport::Phase::kPushingAgent:
      return "copy of the agent";
  }
  return "";
}

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
      redials_(loop),
      router_(loop, options_.output,
              {[this](absl::Status why) { Feed(job::OutputFailed{std::string(why.message())}); },
               [this](std::string text) { Warn(absl::StrCat("dtrain: warning: ", text)); }}),
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
  for (size_t i = 0; i < nodes_.size(); ++i) Connect(NodeId(static_cast<uint32_t>(i)));
  deadline_.At(core_->NextDeadline(), [this] { Feed(job::Tick{}); });
  loop_.Run();
  // The agents are gone, or go when their stream does.
  nodes_.clear();
  status_.reset();
  return exit_code_;
}

void Runner::Connect(NodeId id) {
  const hosts::HostEntry& entry = options_.hosts.entries[id.value()];
  NodeLink::Handlers handlers;
  handlers.on_phase = [this, id](transport::Phase phase) {
    Feed(job::NodePhase{id, PhaseText(phase)});
  };
  handlers.on_connected = [this, id, own = ways_.IsOwnChild(entry)] {
    Feed(job::NodeConnected{id, own});
  };
  handlers.on_event = [this, id](v1::SessionEvent event) {
    if (event.has_finished()) OnFinished(id, event.finished());
    Feed(job::AgentMessage{id, std::move(event), WallNow()});
  };
  handlers.on_job_event = [this, id](v1::JobEvent event) { OnJobEvent(id, std::move(event)); };
  handlers.on_closed = [this, id](absl::Status why) {
    Node& node = *nodes_[id.value()];
    if (node.disconnecting) {
      Disconnect(id);
    } else {
      const bool unknown = transport::IsUnknownHost(why);
      const bool refused = transport::IsNotAuthorised(why);
      const bool anew = transport::WasStartedAnew(why);
      Feed(job::NodeClosed{id, std::move(why), unknown, refused, anew});
    }
  };
  handlers.on_logs = [this, id](v1::LogChunk chunk) { OnLogs(id, chunk); };
  handlers.on_logs_end = [this, id](absl::Status status) {
    if (status.ok()) {
      nodes_[id.value()]->logs_ended = true;
      EndStreams(id);
      Feed(job::LogsDrained{id});
    } else if (absl::IsDataLoss(status)) {
      job::NodeClosed closed{id, std::move(status)};
      closed.output_lost = true;
      Feed(std::move(closed));
    } else if (!absl::IsUnavailable(status)) {
      // When it is, the whole stream broke, and on_closed comes with the reason.
      OnLogsFault(id, status.message());
    }
  };
  nodes_[id.value()]->link = std::make_unique<NodeLink>(
      loop_, ways_.For(entry), redials_, kept_,
      transport::Target{entry.host, entry.user, entry.port}, std::move(handlers));
}

// Lines without an end go out as soon as a node has no more, not at the end of the job.
void Runner::EndStreams(NodeId id) {
  const Node& node = *nodes_[id.value()];
  if (!node.logs_ended) return;
  for (const v1::LogEnd& end : node.finished.logs()) {
    if (IsOn(id, end.rank())) router_.EndOfStream(Rank(end.rank()), end.stream());
  }
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
    if (timeline_ != nullptr) Trace(next, now);
    const std::optional<NodeId> of = NodeOfEvent(next);
    const job::State before = core_->state();
    for (job::Action& action : core_->OnEvent(now, std::move(next))) Do(action);
    if (timeline_ != nullptr && before < job::State::kStarting &&
        core_->state() == job::State::kStarting) {
      for (uint32_t i = 0; i < nodes_.size(); ++i) TraceNode(NodeId(i), "wait for all", now);
    }
    slowest_.Observe(Facts(), of, now);
  }
  feeding_ = false;
  if (!options_.quiet) progress_.Update();
  if (!finishing_) deadline_.At(core_->NextDeadline(), [this] { Feed(job::Tick{}); });
}

// What the timeline shows of an event.
void Runner::Trace(const job::Event& event, TimePoint now) {
  if (const auto* connected = std::get_if<job::NodeConnected>(&event)) {
    TraceNode(connected->node, "connect", now);
  }
  if (const auto* agent = std::get_if<job::AgentMessage>(&event)) {
    if (agent->event.has_welcome()) TraceNode(agent->node, "look at the node", now);
    if (agent->event.has_finished()) TraceNode(agent->node, "run", now);
  }
  const auto* message = std::get_if<job::ShepherdMessage>(&event);
  if (message == nullptr) return;
  const job::NodeView& node = core_->nodes()[message->node.value()];
  if (message->event.has_started()) TraceNode(message->node, "start workers", now);
  if (message->event.has_finished()) TraceNode(message->node, "run", now);
  if (message->event.has_spans()) {
    timeline_->AddSpans(node.host, node.clock_ahead_at_start_nanos, message->event.spans());
  }
}

void Runner::TraceNode(NodeId id, absl::string_view part, TimePoint now) {
  timeline_->NodeReached(id, core_->nodes()[id.value()].host, part, now);
}

void Runner::OnFinished(NodeId id, const v1::Finished& finished) {
  nodes_[id.value()]->finished = finished;
  EndStreams(id);
}

void Runner::OnJobEvent(NodeId id, v1::JobEvent event) {
  if (event.has_stdin_taken() && stdin_ != nullptr) {
    stdin_->Taken(Rank(event.stdin_taken().rank()), event.stdin_taken().closed());
  }
  if (event.has_exit() && stdin_ != nullptr) stdin_->RankEnded(Rank(event.exit().rank()));
  if (event.has_finished()) OnFinished(id, event.finished());
  if (event.has_started() && status_ != nullptr) {
    for (const v1::WorkerStarted& worker : event.started().workers()) {
      if (IsOn(id, worker.rank())) status_->WorkerStarted(worker.rank(), worker.pid());
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

// An agent speaks for the workers of its own node.
bool Runner::IsOn(NodeId id, uint32_t rank) const {
  const std::vector<job::RankEnd>& ranks = core_->ranks();
  return rank < ranks.size() && ranks[rank].node == id;
}

void Runner::OnLogs(NodeId id, const v1::LogChunk& chunk) {
  if (!chunk.lost().empty()) {
    Warn(absl::StrCat(core_->nodes()[id.value()].host, ": ", job::Printable(chunk.lost())));
    return nodes_[id.value()]->link->NextLogs();
  }
  if (!IsOn(id, chunk.rank()) ||
      (chunk.stream() != v1::STREAM_KIND_STDOUT && chunk.stream() != v1::STREAM_KIND_STDERR)) {
    return OnLogsFault(id, absl::StrCat("its agent sent output ", chunk.stream(), " of rank ",
                                        chunk.rank(), ", which is not there"));
  }
  router_.Deliver(core_->nodes()[id.value()].host, Rank(chunk.rank()), chunk.stream(),
                  chunk.data());
  if (status_ != nullptr) {
    status_->logs().Append(Rank(chunk.rank()), chunk.stream(), chunk.data());
  }
  auto next = [this, id] {
    Node& node = *nodes_[id.value()];
    if (node.link != nullptr) node.link->NextLogs();
  };
  if (router_.Full()) {
    router_.WhenRoom(next);
  } else {
    next();
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

// After a Goodbye the agent closes the stream when its session has ended: then, and not before,
// nothing of ours is left there.
void Runner::Disconnect(NodeId id) {
  Node& node = *nodes_[id.value()];
  bool wait = node.link != nullptr && node.said_goodbye && !node.disconnecting;
  if (!std::exchange(node.disconnecting, true) && node.link != nullptr) ++leaving_;
  if (wait) {
    node.goodbye_timer.After(kGoodbyeWait, [this, id] { Disconnect(id); });
    return;
  }
  node.goodbye_timer.Cancel();
  // Posted, because this may be called by the link itself.
  loop_.Post([this, link = std::move(node.link)]() mutable {
    if (link == nullptr) return;
    link.reset();
    --leaving_;
    if (finishing_) OnFinish();
  });
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

NodeId Runner::NodeOf(Rank rank) const { return core_->ranks()[rank.value()].node; }

report::JobFacts Runner::Facts() const { return report::FactsOf(*core_); }

std::string Runner::StatusLine(TimePoint now) {
  return report::ProgressLine(Facts(), now, report::TerminalWidth(STDERR_FILENO));
}

// Called when the job is over, and again as each connection ends.
void Runner::OnFinish() {
  if (!finishing_) {
    finishing_ = true;
    exit_code_ = core_->verdict().exit_code;
    deadline_.Cancel();
    progress_.Stop();
    stdin_.reset();
    router_.FlushLines();  // the report stays the last
    if (std::string text = report::FailureReport(Facts()); !text.empty()) router_.Say(text);
    if (exit_code_ == kExitCleanup || exit_code_ == kExitAgentLost) {
      for (const std::string& detail : details_) Warn(detail);
    }
    if (options_.verbose) {
      router_.Say(report::PhaseTable(Facts(), slowest_, loop_.Now()));
      if (std::string table = report::CollectiveTable(Facts()); !table.empty()) router_.Say(table);
    }
  }
  if (leaving_ > 0) return;
  if (timeline_ != nullptr) {
    absl::Status written = timeline_->Finish(Facts(), loop_.Now());
    if (!written.ok()) Warn(absl::StrCat("dtrain: ", written.message()));
    timeline_.reset();
  }
  if (!options_.result_json.empty()) {
    absl::Status written = report::WriteResult(
        options_.result_json, report::ResultJson(Facts(), options_.job.job_id, loop_.Now()));
    if (!written.ok()) {
      router_.Say(absl::StrCat("dtrain: ", written.message()));
      if (exit_code_ == kExitOk) exit_code_ = kExitState;
    }
    options_.result_json.clear();
  }
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

void Runner::Leave() { loop_.Stop(); }

}  // namespace dtrain
