// SPDX-License-Identifier: Apache-2.0
#include "launcher/attempt_run.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "launcher/job/gpu_watch.h"
#include "launcher/job/outcome.h"
#include "launcher/report/facts.h"
#include "launcher/report/trace.h"

namespace dtrain {
namespace {

// The two clocks that show a sleep are read one after the other, and one may be slewed.
constexpr Duration kShortSleep = std::chrono::milliseconds(200);
// Output that waits for the disk: what is synced at once, and as much again.
constexpr size_t kMostQueued = 2 * detached::kSyncLogBytes;

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

AttemptRun::AttemptRun(const Around& around, hosts::HostList hosts, const job::JobOptions& options,
                       Handlers handlers)
    : around_(around),
      options_(options),
      handlers_(std::move(handlers)),
      core_(std::move(hosts), options, around.loop.Now()),
      node_output_(core_, around.router, around.tails, options.part.elastic().first_number()),
      links_(around.loop, around.ways, LinkHandlers()),
      deadline_(around.loop) {}

AttemptRun::AttemptRun(const Around& around, hosts::HostList hosts, const job::JobOptions& options,
                       const v1::JournalState& before, Handlers handlers)
    : around_(around),
      options_(options),
      handlers_(std::move(handlers)),
      core_(std::move(hosts), options, before.runs(), around.loop.Now()),
      node_output_(core_, around.router, around.tails, options.part.elastic().first_number()),
      links_(around.loop, around.ways, LinkHandlers()),
      deadline_(around.loop),
      ran_(before.has_runs()) {}

AttemptRun::~AttemptRun() { *alive_ = false; }

void AttemptRun::TakeOver(const std::vector<hosts::HostEntry>& hosts,
                          const v1::JournalState& before) {
  std::vector<std::optional<std::string>> boot_ids;
  for (const job::NodeView& node : core_.nodes()) {
    boot_ids.push_back(node.gone ? std::nullopt : std::optional(node.inventory.boot_id()));
  }
  links_.TakeOver(hosts, job::JobCore::HelloOf(options_), boot_ids);
  for (const v1::LogPosition& at : before.logs_safe()) {
    if (at.rank() < core_.ranks().size()) links_.SetSafe(core_.ranks()[at.rank()].node, at);
  }
  for (job::Action& action : core_.TakeActions()) Do(action);
  if (ran_) handlers_.on_runs();
  // First: workers that have ended since then have not succeeded by that.
  if (before.has_scale_up()) Feed(job::EndAsked{before.scale_up().why()});
  // What is known is fed as if it were said now; nodes say it again, and are not believed twice.
  replaying_ = true;
  for (const v1::NodeJournal& node : before.nodes()) {
    if (!node.has_gpus() || node.node() >= core_.nodes().size()) continue;
    gpu_errors_[NodeId(node.node())] = node.gpus().SerializeAsString();
    job::AgentMessage said{NodeId(node.node()), {}, 0};
    *said.event.mutable_gpus() = node.gpus();
    Feed(std::move(said));
  }
  for (const v1::WorkerExit& exit : before.exits()) {
    if (exit.rank() >= core_.ranks().size()) continue;
    v1::JobEvent event;
    *event.mutable_exit() = exit;
    OnJobEvent(core_.ranks()[exit.rank()].node, std::move(event));
  }
  for (const v1::NodeJournal& node : before.nodes()) {
    if (!node.has_finished() || !ran_ || node.node() >= core_.nodes().size()) continue;
    v1::JobEvent event;
    *event.mutable_finished() = node.finished();
    OnJobEvent(NodeId(node.node()), std::move(event));
  }
  replaying_ = false;
  deadline_.At(core_.NextDeadline(), [this] { Feed(job::Tick{}); });
}

void AttemptRun::SetSafe(const v1::LogPositions& positions) {
  for (const v1::LogPosition& at : positions.streams()) {
    if (at.rank() < core_.ranks().size()) links_.SetSafe(core_.ranks()[at.rank()].node, at);
  }
}

void AttemptRun::Begin(const std::vector<hosts::HostEntry>& hosts) {
  links_.Connect(hosts, around_.records != nullptr);
  deadline_.At(core_.NextDeadline(), [this] { Feed(job::Tick{}); });
}

NodeLinks::Handlers AttemptRun::LinkHandlers() {
  NodeLinks::Handlers handlers;
  handlers.on_event = [this](job::Event event) { Feed(std::move(event)); };
  handlers.on_agent = [this](NodeId id, v1::SessionEvent event) {
    if (event.has_kept()) {
      if (on_kept_) on_kept_(id, job::Printable(event.kept().refused()));
      return;
    }
    if (event.has_finished()) {
      node_output_.OnFinished(id, event.finished());
      v1::JobEvent said;
      *said.mutable_finished() = event.finished();
      WriteDown(id, said);
    }
    if (event.has_gpus()) {
      WriteDownGpus(id, event.gpus());
      handlers_.on_gpus(id, event.gpus());
    }
    Feed(job::AgentMessage{id, std::move(event), WallNow()});
  };
  handlers.on_shepherd = [this](NodeId id, v1::JobEvent event) {
    OnJobEvent(id, std::move(event));
  };
  handlers.on_logs = [this](NodeId id, v1::LogChunk chunk) { OnLogs(id, std::move(chunk)); };
  handlers.on_logs_cut = [this](NodeId id) { node_output_.OnCut(id); };
  handlers.on_logs_end = [this](NodeId id, absl::Status why) { OnLogsEnd(id, std::move(why)); };
  handlers.on_left = [this] { OnLeft(); };
  handlers.on_superseded = [this](std::string text) { handlers_.on_superseded(std::move(text)); };
  return handlers;
}

// Actions may lead to further events at once; these wait until the actions are done.
void AttemptRun::Feed(job::Event event) {
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
    const TimePoint now = around_.loop.Now();
    if (around_.timeline != nullptr) report::Trace(*around_.timeline, core_, next, now);
    const std::optional<NodeId> of = NodeOfEvent(next);
    const job::State before = core_.state();
    for (job::Action& action : core_.OnEvent(now, std::move(next))) Do(action);
    if (around_.timeline != nullptr && before < job::State::kStarting &&
        core_.state() == job::State::kStarting) {
      report::TraceMeeting(*around_.timeline, core_, now);
    }
    slowest_.Observe(report::FactsOf(core_), of, now);
    handlers_.on_event(of);
    if (core_.state() == job::State::kRunning && !std::exchange(ran_, true)) OnRan();
  }
  feeding_ = false;
  handlers_.on_changed();
  if (!finished_) deadline_.At(core_.NextDeadline(), [this] { Feed(job::Tick{}); });
}

void AttemptRun::Do(job::Action& action) {
  if (auto* agent = std::get_if<job::ToAgent>(&action)) {
    if (agent->request.has_goodbye()) return SayGoodbye(std::move(*agent));
    links_.Send(*agent);
  } else if (auto* agents = std::get_if<job::ToAgents>(&action)) {
    links_.Send(*agents);
  } else if (auto* shepherd = std::get_if<job::ToShepherd>(&action)) {
    links_.Send(*shepherd);
  } else if (auto* shepherds = std::get_if<job::ToShepherds>(&action)) {
    if (shepherds->request.has_stage() && around_.code != nullptr) {
      code_.emplace(*around_.code, shepherds->nodes, around_.loop.Now());
    }
    links_.Send(*shepherds);
  } else if (auto* beat = std::get_if<job::Beat>(&action)) {
    links_.Send(*beat);
  } else if (auto* logs = std::get_if<job::OpenLogs>(&action)) {
    links_.OpenLogs(logs->node, options_.job_id, options_.attempt);
  } else if (auto* disconnect = std::get_if<job::Disconnect>(&action)) {
    Disconnect(disconnect->node);
  } else if (auto* again = std::get_if<job::ConnectAgain>(&action)) {
    links_.ConnectAgain(*again);
  } else if (auto* dial = std::get_if<job::DialAnew>(&action)) {
    links_.DialAnew(dial->node);
  } else if (auto* warn = std::get_if<job::Warn>(&action)) {
    handlers_.on_warning(std::move(*warn));
  } else if (std::holds_alternative<job::PlanReady>(action)) {
    handlers_.on_plan(core_.plan());
  } else if (std::holds_alternative<job::Finish>(action)) {
    finished_ = true;
    deadline_.Cancel();
    OnLeft();
  }
}

// The node forgets what it has said, all of which must be on disk by then. Its output is; of how
// its workers have ended it may have spoken since.
void AttemptRun::SayGoodbye(job::ToAgent goodbye) {
  if (around_.records == nullptr) return links_.Send(goodbye);
  const NodeId node = goodbye.node;
  farewells_[node] = false;
  around_.records->FlushJournal([this, node, goodbye = std::move(goodbye), alive = alive_] {
    if (!*alive) return;
    links_.Send(goodbye);
    const bool disconnects = farewells_.at(node);
    farewells_.erase(node);
    if (disconnects) links_.Disconnect(node);
    OnLeft();
  });
}

void AttemptRun::Disconnect(NodeId node) {
  const auto farewell = farewells_.find(node);
  if (farewell == farewells_.end()) return links_.Disconnect(node);
  farewell->second = true;
}

void AttemptRun::OnRan() {
  if (around_.records == nullptr) return handlers_.on_runs();
  around_.records->AttemptRuns(Runs(), [this, alive = alive_] {
    if (*alive) handlers_.on_runs();
  });
}

v1::AttemptRuns AttemptRun::Runs() const {
  const plan::Plan& plan = core_.plan();
  v1::AttemptRuns runs;
  runs.set_attempt(options_.attempt);
  runs.set_world_size(plan.world_size);
  runs.set_universe_size(plan.universe_size);
  runs.set_process_mapping(plan.process_mapping);
  for (const plan::PlannedNode& planned : plan.nodes) {
    v1::RunningNode& node = *runs.add_nodes();
    node.set_node(planned.node.value());
    node.set_slots(planned.slots);
    *node.mutable_inventory() = core_.nodes()[planned.node.value()].inventory;
    for (const v1::WorkerSpec& worker : planned.workers) {
      *node.add_workers() = worker;
      v1::WorkerStarted& started = *node.add_started();
      started.set_rank(worker.rank());
      started.set_pid(core_.ranks()[worker.rank()].pid);
    }
  }
  return runs;
}

std::vector<v1::LogPosition> AttemptRun::Taken() const {
  std::vector<v1::LogPosition> taken = links_.Taken();
  std::sort(taken.begin(), taken.end(), [](const v1::LogPosition& a, const v1::LogPosition& b) {
    return std::pair(a.rank(), a.stream()) < std::pair(b.rank(), b.stream());
  });
  return taken;
}

// Before the job does anything because of it.
void AttemptRun::WriteDown(NodeId id, const v1::JobEvent& event) {
  if (around_.records == nullptr || replaying_) return;
  v1::NodeFact fact;
  fact.set_attempt(options_.attempt);
  fact.set_node(id.value());
  if (event.has_exit()) {
    if (!node_output_.IsOn(id, event.exit().rank())) return;
    *fact.mutable_exit() = event.exit();
  } else if (event.has_finished()) {
    *fact.mutable_finished() = event.finished();
  } else if (event.has_failure()) {
    *fact.mutable_failure() = event.failure();
  } else {
    return;
  }
  around_.records->Fact(std::move(fact));
}

// Errors, once each: samples come all the time.
void AttemptRun::WriteDownGpus(NodeId id, const v1::GpuStates& states) {
  if (around_.records == nullptr) return;
  v1::GpuStates errors = job::ErrorsOf(states);
  if (errors.gpus_size() == 0) return;
  std::string text = errors.SerializeAsString();
  std::string& last = gpu_errors_[id];
  if (text == last) return;
  last = std::move(text);
  v1::NodeFact fact;
  fact.set_attempt(options_.attempt);
  fact.set_node(id.value());
  *fact.mutable_gpus() = std::move(errors);
  around_.records->Fact(std::move(fact));
}

void AttemptRun::OnJobEvent(NodeId id, v1::JobEvent event) {
  // It has no part in the job: only the core knows what that means.
  if (core_.nodes()[id.value()].spare) {
    return Feed(job::ShepherdMessage{id, std::move(event), WallNow()});
  }
  WriteDown(id, event);
  if (event.has_stdin_taken() && node_output_.IsOn(id, event.stdin_taken().rank())) {
    handlers_.on_stdin_taken(event.stdin_taken());
  }
  if (event.has_exit() && node_output_.IsOn(id, event.exit().rank())) {
    v1::StdinTaken ended;
    ended.set_rank(event.exit().rank());
    ended.set_closed(true);
    handlers_.on_stdin_taken(ended);
  }
  if (event.has_finished()) node_output_.OnFinished(id, event.finished());
  if (event.has_stage_missing() || event.has_stage_taken() || event.has_staged()) {
    OnCode(id, event);
  }
  if (event.has_elastic()) handlers_.on_elastic(std::move(*event.mutable_elastic()));
  if (event.has_checkpoint() && node_output_.IsOn(id, 0) && std::exchange(looks_, false)) {
    const v1::Checkpoint& checkpoint = event.checkpoint();
    const std::string trouble = checkpoint.trouble().empty()
                                    ? ""
                                    : absl::StrCat(core_.nodes()[id.value()].host, ": ",
                                                   job::Printable(checkpoint.trouble()));
    handlers_.on_checkpoint(checkpoint.newer(), trouble);
  }
  std::optional<Rank> ended;
  if (event.has_exit() && node_output_.IsOn(id, event.exit().rank())) {
    ended = Rank(event.exit().rank());
  }
  Feed(job::ShepherdMessage{id, std::move(event), WallNow()});
  if (ended) handlers_.on_rank_ended(*ended);
}

void AttemptRun::OnCode(NodeId id, const v1::JobEvent& event) {
  if (!code_ || core_.state() != job::State::kStarting) return;
  if (const absl::Status taken = code_->OnEvent(id, event); !taken.ok()) {
    return Feed(job::NodeClosed{
        id, absl::DataLossError(absl::StrCat("its shepherd broke a rule: ", taken.message()))});
  }
  while (auto next = code_->Next()) {
    if (!next->warning.empty()) handlers_.on_warning({next->warning, /*detail=*/false});
    links_.Send(next->message);
  }
  if (!code_->all_staged()) return;
  handlers_.on_staged(code_->Sent(around_.loop.Now()));
  code_.reset();
}

void AttemptRun::SendStdin(Rank rank, absl::string_view data, bool end) {
  v1::JobRequest request;
  v1::StdinData& message = *request.mutable_stdin();
  message.set_rank(rank.value());
  message.set_data(data.data(), data.size());
  message.set_end(end);
  links_.SendTo(core_.ranks()[rank.value()].node, request);
}

void AttemptRun::SendElastic(v1::ElasticDown down) {
  v1::JobRequest request;
  *request.mutable_elastic() = std::move(down);
  links_.SendTo(NodeId(0), request);
}

void AttemptRun::Keep(const std::vector<NodeId>& nodes, OnKept on_kept) {
  on_kept_ = std::move(on_kept);
  v1::SessionRequest request;
  request.mutable_keep_job();
  for (const NodeId id : nodes) links_.SendTo(id, request);
}

void AttemptRun::LookAtCheckpoint() {
  if (core_.state() != job::State::kRunning) return;
  looks_ = true;
  v1::JobRequest request;
  request.mutable_look_at_checkpoint();
  links_.SendTo(core_.ranks()[0].node, request);
}

void AttemptRun::OnLogs(NodeId id, v1::LogChunk chunk) {
  if (!chunk.lost().empty()) {
    handlers_.on_warning(
        {absl::StrCat(core_.nodes()[id.value()].host, ": ", job::Printable(chunk.lost())),
         /*detail=*/false});
    return links_.NextLogs(id);
  }
  if (absl::Status valid = node_output_.Check(id, chunk); !valid.ok()) {
    return OnLogsFault(id, valid.message());
  }
  const bool is_stderr = chunk.stream() == v1::STREAM_KIND_STDERR;
  if (const Rank rank(chunk.rank()); signs_.Read(rank, is_stderr, chunk.data(), WallNow())) {
    Feed(job::SignSeen{id, rank, signs_.Of(rank)});
  }
  detached::LogStore* const store = around_.records != nullptr ? &around_.records->logs() : nullptr;
  if (store != nullptr) {
    store->Write({Rank(chunk.rank()), is_stderr}, chunk.offset(), chunk.data());
  }
  node_output_.Deliver(id, std::move(chunk));
  if (store != nullptr && store->queued_bytes() > kMostQueued) return unread_.push_back(id);
  if (around_.router.Full()) {
    around_.router.WhenRoom([this, id, alive = alive_] {
      if (*alive) links_.NextLogs(id);
    });
  } else {
    links_.NextLogs(id);
  }
}

void AttemptRun::OnLogsEnd(NodeId id, absl::Status status) {
  if (status.ok()) {
    node_output_.OnDelivered(id);
    if (around_.records == nullptr) return Feed(job::LogsDrained{id});
    // What the node has said is on disk then, too.
    around_.records->Flush([this, id, alive = alive_] {
      if (*alive) Feed(job::LogsDrained{id});
    });
  } else if (absl::IsDataLoss(status)) {
    job::NodeClosed closed{id, std::move(status)};
    closed.output_lost = true;
    Feed(std::move(closed));
  } else if (!absl::IsUnavailable(status)) {
    // When it is, the whole stream broke, and NodeClosed comes with the reason.
    OnLogsFault(id, status.message());
  }
}

void AttemptRun::OnRoom() {
  while (!unread_.empty() && around_.records->logs().queued_bytes() <= kMostQueued) {
    const NodeId id = unread_.front();
    unread_.pop_front();
    links_.NextLogs(id);
  }
}

void AttemptRun::OnLogsFault(NodeId id, absl::string_view why) {
  Feed(job::NodeClosed{id, absl::DataLossError(absl::StrCat("the logs cannot be read: ", why)),
                       /*unknown_host=*/false, /*not_authorised=*/false, /*started_anew=*/false});
}

// The job is over, or one more connection has ended.
void AttemptRun::OnLeft() {
  if (!finished_ || !farewells_.empty() || links_.leaving() > 0) return;
  if (std::exchange(over_, true)) return;
  handlers_.on_over();
}

}  // namespace dtrain
