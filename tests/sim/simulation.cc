// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/simulation.h"

#include <time.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "launcher/hosts/hostfile.h"
#include "launcher/report/facts.h"
#include "launcher/report/failure_report.h"

namespace dtrain::sim {
namespace {

using std::chrono::milliseconds;

constexpr int64_t kEpoch = 1'700'000'000'000'000'000;
constexpr char kBuild[] = "sim";

Duration ThreadCpu() {
  timespec spent{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
  return std::chrono::seconds(spent.tv_sec) + std::chrono::nanoseconds(spent.tv_nsec);
}

// Adds the processor time of its life to a sum.
class Meter {
 public:
  explicit Meter(Duration& sum) : sum_(sum), begin_(ThreadCpu()) {}
  ~Meter() { sum_ += ThreadCpu() - begin_; }
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;

 private:
  Duration& sum_;
  const Duration begin_;
};

std::optional<NodeId> NodeOf(const job::Event& event) {
  return std::visit(
      [](const auto& each) -> std::optional<NodeId> {
        if constexpr (requires { each.node; }) return each.node;
        return std::nullopt;
      },
      event);
}

}  // namespace

struct Simulation::Node {
  explicit Node(session::SessionCore s) : session(std::move(s)) {}
  session::SessionCore session;
  shepherd::ShepherdCore shepherd;
  bool connected = false;  // the launcher and it hear each other
  bool over = false;       // of the session
  uint64_t timer = 0;      // which of its timers counts
  std::vector<uint32_t> living;
  std::map<uint32_t, uint32_t> pids;
  bool logs_open = false;
  bool logs_told = false;
  bool finished_told = false;
  int refused = 0;
};

Simulation::Simulation(Shape shape) : shape_(std::move(shape)) {
  hosts::HostList hosts;
  for (size_t i = 0; i < shape_.nodes; ++i) {
    hosts::HostEntry entry;
    entry.host = absl::StrCat("gpu", i);
    entry.slots = shape_.ranks;
    hosts.entries.push_back(std::move(entry));
  }
  job::JobOptions options;
  options.build = kBuild;
  options.job_id = "sim";
  options.incarnation = std::string(16, 'i');
  options.probe_token = std::string(32, 't');
  v1::EnvVar& variable = *options.part.add_env();
  variable.set_name("FORWARDED");
  variable.set_value(std::string(shape_.environment, 'e'));
  options.part.add_programs()->add_argv("train.py");
  if (shape_.options) shape_.options(options);
  for (size_t i = 0; i < shape_.nodes; ++i) {
    session::Identity identity;
    identity.protocol = options.protocol;
    identity.build = kBuild;
    identity.resumable = true;
    nodes_.push_back(std::make_unique<Node>(session::SessionCore(identity, now_)));
  }
  {
    const Meter meter(bill_.launcher_cpu);
    core_ = std::make_unique<job::JobCore>(std::move(hosts), std::move(options), now_);
  }
  for (size_t i = 0; i < shape_.nodes; ++i) Connect(i);
}

Simulation::~Simulation() = default;

void Simulation::At(TimePoint at, std::function<void()> task) {
  queue_.push({std::max(at, now_), ++order_, std::move(task)});
}

bool Simulation::Run(const std::function<bool()>& until) {
  while (!finished_) {
    if (until && until()) return true;
    const TimePoint deadline = core_->NextDeadline();
    if (queue_.empty() && deadline == kNever) return false;
    if (queue_.empty() || deadline <= queue_.top().at) {
      now_ = std::max(now_, deadline);
      Feed(job::Tick{});
      continue;
    }
    const Later next = queue_.top();
    queue_.pop();
    now_ = std::max(now_, next.at);
    next.task();
  }
  return true;
}

bool Simulation::RunFor(Duration duration) {
  bool over = false;
  At(now_ + duration, [&] { over = true; });
  return Run([&] { return over; });
}

Bill Simulation::Spent() {
  // What was freed so far glibc puts in order at the next larger allocations: now, and not at the
  // expense of what is measured next.
  std::vector<std::unique_ptr<char[]>> large(32);
  for (auto& each : large) each = std::make_unique<char[]>(100'000);
  bill_.simulated = now_ - std::exchange(bill_since_, now_);
  return std::exchange(bill_, {});
}

int64_t Simulation::Wall(TimePoint at) const { return kEpoch + (at - start_).count(); }

// ---- the launcher ------------------------------------------------------------------------------

void Simulation::Connect(size_t index) {
  // One after the other, and what is said meanwhile comes between.
  dials_free_ = std::max(dials_free_, now_) + shape_.costs.connect;
  At(dials_free_ + shape_.costs.agent_start, [this, index] {
    const NodeId id(static_cast<uint32_t>(index));
    if (const auto why = unreachable_ ? unreachable_(index) : std::nullopt) {
      return Feed(job::NodeClosed{id, absl::UnavailableError(*why)});
    }
    nodes_[index]->connected = true;
    Feed(job::NodeConnected{id});
  });
}

void Simulation::Feed(job::Event event) {
  if (finished_) return;
  std::vector<job::Action> actions;
  {
    const Meter meter(bill_.launcher_cpu);
    const std::optional<NodeId> of = NodeOf(event);
    actions = core_->OnEvent(now_, std::move(event));
    slowest_.Observe(report::FactsOf(*core_), of, now_);
  }
  for (job::Action& action : actions) Do(action);
}

void Simulation::Do(job::Action& action) {
  if (auto* agent = std::get_if<job::ToAgent>(&action)) {
    DeliverToAgents({agent->node}, std::move(agent->request));
  } else if (auto* agents = std::get_if<job::ToAgents>(&action)) {
    DeliverToAgents(agents->nodes, std::move(agents->request));
  } else if (auto* shepherd = std::get_if<job::ToShepherd>(&action)) {
    auto whole = std::make_shared<v1::JobRequest>();
    if (shepherd->common != nullptr) *whole->mutable_start() = *shepherd->common;
    whole->MergeFrom(shepherd->request);
    DeliverToShepherds({shepherd->node}, std::move(whole), shepherd->request.ByteSizeLong());
  } else if (auto* shepherds = std::get_if<job::ToShepherds>(&action)) {
    const size_t bytes = shepherds->request.ByteSizeLong();
    DeliverToShepherds(shepherds->nodes,
                       std::make_shared<v1::JobRequest>(std::move(shepherds->request)), bytes);
  } else if (auto* beat = std::get_if<job::Beat>(&action)) {
    DeliverBeat(beat->nodes);
  } else if (const auto* logs = std::get_if<job::OpenLogs>(&action)) {
    nodes_[logs->node.value()]->logs_open = true;
  } else if (const auto* disconnect = std::get_if<job::Disconnect>(&action)) {
    const size_t index = disconnect->node.value();
    nodes_[index]->connected = false;
    At(now_ + shape_.costs.latency, [this, index] { FeedSession(index, session::LauncherGone{}); });
  } else if (std::holds_alternative<job::Finish>(action)) {
    const Meter meter(bill_.launcher_cpu);
    report_ = report::FailureReport(report::FactsOf(*core_));
    finished_ = true;
  }
}

void Simulation::Deliver(const std::vector<NodeId>& to, size_t bytes, size_t made,
                         const std::function<void(size_t)>& arrive) {
  bill_.bytes_made += made;
  bill_.largest_message = std::max(bill_.largest_message, bytes);
  for (const NodeId id : to) {
    const size_t index = id.value();
    bill_.bytes_out += bytes;
    launcher_free_ = std::max(launcher_free_, now_) + shape_.costs.launcher_message;
    if (!nodes_[index]->connected) continue;
    At(std::max(launcher_free_, silent_until_) + shape_.costs.latency,
       [index, arrive] { arrive(index); });
  }
}

void Simulation::DeliverToAgents(const std::vector<NodeId>& to, v1::SessionRequest request) {
  const size_t bytes = request.ByteSizeLong();
  auto what = std::make_shared<const session::Request>(session::Request{std::move(request)});
  bill_.messages += to.size();
  Deliver(to, bytes, bytes, [this, what](size_t index) { FeedSession(index, *what); });
}

void Simulation::DeliverToShepherds(const std::vector<NodeId>& to,
                                    const std::shared_ptr<const v1::JobRequest>& request,
                                    size_t made) {
  bill_.messages += to.size();
  Deliver(to, request->ByteSizeLong(), made, [this, request](size_t index) {
    FeedSession(index, session::JobFrame{/*kept=*/true, /*asks=*/true});
    const Node& node = *nodes_[index];
    if (!node.over && node.session.passes()) ToShepherd(index, *request);
  });
}

void Simulation::DeliverBeat(const std::vector<NodeId>& to) {
  session::Request request;
  request.request.mutable_heartbeat();
  const size_t bytes = request.request.ByteSizeLong();
  auto what = std::make_shared<const session::Request>(std::move(request));
  Deliver(to, bytes, bytes, [this, what](size_t index) {
    FeedSession(index, *what);
    FeedSession(index, session::JobFrame{/*kept=*/false, /*asks=*/true});
    const Node& node = *nodes_[index];
    if (node.over || !node.session.passes()) return;
    v1::JobEvent event;
    event.mutable_heartbeat();
    FromShepherd(index, std::move(event));
  });
}

namespace {

job::Event Said(NodeId node, v1::SessionEvent event, int64_t wall) {
  return job::AgentMessage{node, std::move(event), wall};
}
job::Event Said(NodeId node, v1::JobEvent event, int64_t wall) {
  return job::ShepherdMessage{node, std::move(event), wall};
}

}  // namespace

template <typename Event>
void Simulation::Hear(size_t index, Event event) {
  const NodeId id(static_cast<uint32_t>(index));
  Node& node = *nodes_[index];
  if (!node.connected) return;
  if (!event.has_heartbeat()) ++bill_.messages;
  bill_.bytes_in += event.ByteSizeLong();
  const bool finished = event.has_finished();
  Feed(Said(id, std::move(event), Wall(now_)));
  node.finished_told = node.finished_told || finished;
  if (node.finished_told && node.logs_open && !std::exchange(node.logs_told, true)) {
    Feed(job::LogsDrained{id});
  }
}

template <typename Event>
void Simulation::Say(size_t index, Event event, Duration after) {
  At(std::max(now_ + after, silent_until_) + shape_.costs.latency,
     [this, index, event = std::move(event)]() mutable { Hear(index, std::move(event)); });
}

// ---- a node ------------------------------------------------------------------------------------

v1::Inventory Simulation::InventoryOf(size_t index) const {
  v1::Inventory inventory;
  inventory.set_hostname(absl::StrCat("gpu", index));
  inventory.set_boot_id(absl::StrCat("boot-", index));
  inventory.set_network_namespace(7);
  inventory.set_machine("x86_64");
  inventory.set_allowed_cpus("0-127");
  inventory.set_probe_port(4000);
  inventory.set_probe_reply(absl::StrCat("reply-", index));
  inventory.set_clock_unix_nanos(Wall(now_));
  inventory.set_reserves(true);
  for (uint32_t i = 0; i < shape_.ranks; ++i) {
    v1::Gpu& gpu = *inventory.add_gpus();
    gpu.set_index(i);
    gpu.set_uuid(absl::StrCat("GPU-", index, "-", i, "-6f2d2a2e-5d0b-4c5e-9d7f"));
    gpu.set_pci_address(absl::StrCat("0000:", i, "b:00.0"));
    gpu.set_name("NVIDIA H100 80GB HBM3");
    gpu.set_numa_node(-1);
    gpu.set_memory_total_bytes(uint64_t{80} << 30);
  }
  for (int i = 0; i < 9; ++i) {
    v1::Interface& interface = *inventory.add_interfaces();
    interface.set_name(absl::StrCat("eth", i));
    interface.set_up(true);
    interface.set_physical(true);
    v1::Address& address = *interface.add_addresses();
    address.set_ip(absl::StrCat("10.", i, ".", index / 250, ".", index % 250 + 1));
    address.set_prefix_length(16);
  }
  return inventory;
}

void Simulation::FeedSession(size_t index, const session::Event& event) {
  Node& node = *nodes_[index];
  if (node.over) return;
  std::vector<session::Action> actions;
  {
    const Meter meter(bill_.nodes_cpu);
    actions = node.session.OnEvent(now_, event);
  }
  for (session::Action& action : actions) DoSession(index, action);
  if (!node.over) ArmSession(index);
}

void Simulation::ArmSession(size_t index) {
  Node& node = *nodes_[index];
  const uint64_t mine = ++node.timer;
  const TimePoint at = node.session.NextDeadline();
  if (at == kNever) return;
  At(at, [this, index, mine] {
    if (nodes_[index]->timer == mine) FeedSession(index, session::Tick{});
  });
}

void Simulation::DoSession(size_t index, session::Action& action) {
  Node& node = *nodes_[index];
  const auto say = [&](v1::SessionEvent event, Duration after = {}) {
    Say(index, std::move(event), after);
  };
  if (auto* send = std::get_if<session::SendEvent>(&action)) {
    if (send->event.has_heartbeat()) {
      send->event.mutable_heartbeat()->set_unix_nanos(Wall(now_));
    }
    say(std::move(send->event));
  } else if (std::holds_alternative<session::SendWelcome>(action)) {
    const v1::Hello& hello = node.session.hello();
    v1::SessionEvent event;
    v1::Welcome& welcome = *event.mutable_welcome();
    welcome.set_job_id(hello.job_id());
    welcome.set_attempt(hello.attempt());
    welcome.set_incarnation(hello.incarnation());
    welcome.set_resumable(true);
    *welcome.mutable_inventory() = InventoryOf(index);
    say(std::move(event));
    At(now_, [this, index] { FeedSession(index, session::GpusSeen{}); });
  } else if (auto* probe = std::get_if<session::RunProbe>(&action)) {
    v1::SessionEvent event;
    for (const v1::ProbeTarget& target : probe->request.targets()) {
      v1::ProbeOutcome& outcome = *event.mutable_probe_report()->add_outcomes();
      outcome.set_node(target.node());
      outcome.set_ip(target.ip());
      outcome.set_reached(true);
      outcome.set_round_trip_us(200);
    }
    event.mutable_probe_report();
    say(std::move(event), 2 * shape_.costs.latency);
  } else if (auto* hold = std::get_if<session::HoldPorts>(&action)) {
    v1::SessionEvent event;
    event.mutable_ports_held();
    for (uint32_t i = 0; i < hold->count; ++i) event.mutable_ports_held()->add_ports(5000 + i);
    say(std::move(event));
  } else if (std::holds_alternative<session::ReserveShare>(action)) {
    v1::SessionEvent event;
    event.mutable_reserved();
    if (node.refused < refusals_) {
      ++node.refused;
      event.mutable_reserved()->set_refused("GPU 0 is held by job other of bob");
    }
    say(std::move(event));
  } else if (std::holds_alternative<session::SendInventory>(action)) {
    v1::SessionEvent event;
    *event.mutable_inventory() = InventoryOf(index);
    say(std::move(event));
  } else if (auto* down = std::get_if<session::SendShepherd>(&action)) {
    if (!down->request.has_end_job()) return;
    FeedSession(index, session::ShepherdAnswers{});
    FeedShepherd(index, shepherd::StopAsked{milliseconds(down->request.end_job().grace_ms())});
  } else if (std::holds_alternative<session::LookAtGpus>(action)) {
    At(now_ + milliseconds(1), [this, index] { FeedSession(index, session::GpusSeen{}); });
  } else if (std::holds_alternative<session::KillLeftovers>(action)) {
    node.living.clear();
    At(now_ + milliseconds(5), [this, index] { FeedSession(index, session::LeftoversGone{}); });
  } else if (std::holds_alternative<session::End>(action)) {
    node.over = true;
    ++node.timer;
  }
}

void Simulation::ToShepherd(size_t index, const v1::JobRequest& request) {
  Node& node = *nodes_[index];
  if (request.has_start()) {
    for (const v1::WorkerSpec& worker : request.start().workers()) {
      node.living.push_back(worker.rank());
      node.pids[worker.rank()] = 10000 + worker.rank();
    }
    FeedShepherd(
        index, shepherd::PartArrived{node.living.size(), milliseconds(request.start().grace_ms())});
  } else if (request.has_stop()) {
    FeedSession(index, session::ShepherdAnswers{});  // an acknowledgement
    if (request.stop().all_ended()) return;
    FeedShepherd(index, shepherd::StopAsked{milliseconds(request.stop().grace_ms()),
                                            request.stop().cancelled()});
  }
}

void Simulation::FeedShepherd(size_t index, const shepherd::Event& event) {
  absl::StatusOr<std::vector<shepherd::Action>> actions;
  {
    const Meter meter(bill_.nodes_cpu);
    actions = nodes_[index]->shepherd.OnEvent(now_, event);
  }
  if (actions.ok()) DoShepherd(index, *actions);
}

void Simulation::DoShepherd(size_t index, const std::vector<shepherd::Action>& actions) {
  Node& node = *nodes_[index];
  for (const shepherd::Action action : actions) {
    switch (action) {
      case shepherd::Action::kSpawn:
        At(now_ + shape_.costs.spawn, [this, index] {
          Node& its = *nodes_[index];
          v1::JobEvent started;
          for (uint32_t rank : its.living) {
            v1::WorkerStarted& worker = *started.mutable_started()->add_workers();
            worker.set_rank(rank);
            worker.set_pid(its.pids[rank]);
            if (forever_) continue;
            const int code = exit_code_ ? exit_code_(rank) : 0;
            At(now_ + shape_.costs.run,
               [this, index, rank, code] { EndWorker(index, rank, code, 0); });
          }
          FromShepherd(index, std::move(started));
          FeedShepherd(index, shepherd::Spawned{});
        });
        break;
      case shepherd::Action::kTerminate:
      case shepherd::Action::kKill: {
        const int signal = action == shepherd::Action::kKill ? SIGKILL : SIGTERM;
        for (uint32_t rank : node.living) {
          At(now_ + milliseconds(2),
             [this, index, rank, signal] { EndWorker(index, rank, 0, signal); });
        }
        break;
      }
      case shepherd::Action::kAwaitRest:
        At(now_, [this, index] { FeedShepherd(index, shepherd::NothingLeft{}); });
        break;
      case shepherd::Action::kSweep:
        At(now_, [this, index] { FeedShepherd(index, shepherd::Swept{}); });
        break;
      case shepherd::Action::kDrain:
        At(now_, [this, index] { FeedShepherd(index, shepherd::Drained{}); });
        break;
      case shepherd::Action::kFinish: {
        v1::JobEvent finished;
        finished.mutable_finished();
        FromShepherd(index, std::move(finished));
        FeedSession(index, session::JobEnded{});
        break;
      }
      case shepherd::Action::kPrepare:
      case shepherd::Action::kTerminateRest:
      case shepherd::Action::kTellKilled:
      case shepherd::Action::kReportUnkillable:
        break;
    }
  }
}

void Simulation::FromShepherd(size_t index, v1::JobEvent event) {
  FeedSession(index, session::ShepherdAnswers{});
  Say(index, std::move(event));
}

void Simulation::EndWorker(size_t index, uint32_t rank, int code, int signal) {
  Node& node = *nodes_[index];
  const auto found = std::find(node.living.begin(), node.living.end(), rank);
  if (found == node.living.end()) return;
  node.living.erase(found);
  v1::JobEvent event;
  v1::WorkerExit& exit = *event.mutable_exit();
  exit.set_rank(rank);
  exit.set_pid(node.pids[rank]);
  exit.set_exit_code(code);
  exit.set_signal(signal);
  exit.set_unix_nanos(Wall(now_));
  exit.set_told_to_stop(node.shepherd.stop_asked());
  FromShepherd(index, std::move(event));
  FeedShepherd(index, shepherd::WorkerEnded{});
}

// ---- what happens to it ------------------------------------------------------------------------

void Simulation::BreakAllLinks(const std::function<std::string(size_t)>& why) {
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (!nodes_[i]->connected) continue;
    nodes_[i]->connected = false;
    Feed(job::NodeClosed{NodeId(static_cast<uint32_t>(i)), absl::UnavailableError(why(i))});
  }
}

void Simulation::Signal(int signal) { Feed(job::UserSignal{signal}); }

void Simulation::SayProgress() {
  for (size_t i = 0; i < nodes_.size(); ++i) {
    v1::JobEvent event;
    for (uint32_t rank : nodes_[i]->living) {
      v1::RankProgress& progress = *event.mutable_progress()->add_ranks();
      progress.set_rank(rank);
      progress.set_joined(true);
      progress.set_inside(true);
      progress.set_number(static_cast<uint64_t>((now_ - start_) / milliseconds(10)));
      progress.set_operations(progress.number());
      progress.set_inside_nanos(1'000'000);
    }
    FromShepherd(i, std::move(event));
  }
}

void Simulation::EnterFence(uint32_t sequence, size_t value_bytes) {
  for (size_t i = 0; i < nodes_.size(); ++i) {
    v1::JobEvent event;
    v1::FenceEnter& enter = *event.mutable_fence_enter();
    enter.set_sequence(sequence);
    for (uint32_t rank : nodes_[i]->living) {
      v1::KeyValue& entry = *enter.add_entries();
      entry.set_key(absl::StrCat("card-", rank));
      entry.set_value(std::string(value_bytes, 'v'));
    }
    FromShepherd(i, std::move(event));
  }
}

void Simulation::Silence(Duration duration) { silent_until_ = now_ + duration; }

}  // namespace dtrain::sim
