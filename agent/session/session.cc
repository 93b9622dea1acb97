// SPDX-License-Identifier: Apache-2.0
#include "agent/session/session.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "agent/session/withheld_gpus.h"
#include "common/base/text.h"
#include "common/link/party.h"
#include "common/log/log.h"
#include "common/os/crash.h"
#include "common/os/process_tree.h"

namespace dtrain::session {
namespace {

// For a shepherd that has no session any more to end, beyond the grace of its workers.
constexpr Duration kPatience = std::chrono::seconds(10);

// Of why a shepherd cannot go on.
constexpr size_t kMostOfWhy = 400;

link::LinkCore::Options LinkOptions() {
  link::LinkCore::Options options;
  options.channel = link::Channel::kAgent;
  options.epoch = link::RandomEpoch();
  options.out = link::kOfAgent;
  options.in = link::kOfAgent;
  // What the launcher knows of an agent before us is nothing that it has of us.
  options.forgets = true;
  return options;
}

// By the shepherd's own word, which counts for its own report and for what its end leaves.
Reported ReportedBy(const v1::Report& report) {
  Reported out;
  out.gpus = {report.job().gpu_uuids().begin(), report.job().gpu_uuids().end()};
  for (const v1::RankOnNode& rank : report.job().ranks()) {
    if (rank.pid() != 0) out.workers.insert(rank.pid());
  }
  return out;
}

// Of a job that another agent has started. What it has reserved that agent wrote down; without the
// record its shepherd's word keeps others away, at worst from more than it has.
Reported ReportedBy(const v1::Report& report, const v1::JobRecord& record) {
  Reported out = ReportedBy(report);
  if (!record.boot_id().empty()) out.gpus = {record.gpu_uuids().begin(), record.gpu_uuids().end()};
  return out;
}

std::vector<containers::Removable> RemovablesOf(const v1::Report& report) {
  std::vector<containers::Removable> out;
  for (const v1::LeftContainers& left : report.containers()) {
    out.push_back({left.container(), {left.names().begin(), left.names().end()}});
  }
  return out;
}

// Which of a message's alternatives it is: "dtrain.v1.SessionRequest.start".
absl::string_view KindOf(const google::protobuf::Message& message) {
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  const google::protobuf::OneofDescriptor* kinds = type.FindOneofByName("kind");
  const google::protobuf::FieldDescriptor* kind =
      kinds != nullptr ? message.GetReflection()->GetOneofFieldDescriptor(message, kinds) : nullptr;
  return kind != nullptr ? absl::string_view(kind->full_name()) : type.full_name();
}

}  // namespace

Session::Session(Surroundings surroundings, Owner owner, SessionCore core,
                 std::unique_ptr<ShepherdChannel> shepherd, loop::Task on_ended)
    : agent_(std::move(surroundings)),
      loop_(agent_.loop),
      owner_(owner),
      since_unix_nanos_(absl::GetCurrentTimeNanos()),
      core_(std::move(core)),
      on_ended_(std::move(on_ended)),
      link_(LinkOptions()),
      link_due_(loop_),
      // A launcher that may come back says itself how far it has come.
      relay_(loop_, /*reclaim=*/!agent_.self.resumable, LogHandlers()),
      shepherd_(std::move(shepherd)),
      deadline_(loop_),
      alive_(std::make_shared<bool>(true)) {
  ListenToShepherd();
}

Session::Session(Surroundings surroundings, Owner owner, std::unique_ptr<ShepherdChannel> shepherd,
                 std::shared_ptr<Stream> stream, loop::Task on_ended)
    : Session(surroundings, owner, SessionCore(surroundings.self, surroundings.loop.Now()),
              std::move(shepherd), std::move(on_ended)) {
  Listen(std::move(stream));
  Feed(Tick{});
}

Session::Session(Surroundings surroundings, Owner owner, std::unique_ptr<ShepherdChannel> shepherd,
                 v1::Account account, const v1::JobRecord& record, JobDirectory directory,
                 loop::Task on_ended)
    : Session(surroundings, owner,
              SessionCore(surroundings.self, surroundings.loop.Now(), account,
                          ReportedBy(account.report(), record)),
              std::move(shepherd), std::move(on_ended)) {
  directory_ = std::move(directory);
  const bool recorded = !record.boot_id().empty();
  v1::Reserve& reserved = reserved_.emplace();
  const v1::JobOnNode& job = account.report().job();
  *reserved.mutable_gpu_uuids() = recorded ? record.gpu_uuids() : job.gpu_uuids();
  reserved.set_cpulist(recorded ? record.cpulist() : job.cpulist());
  reserved.set_node_rank(recorded ? record.node_rank() : job.node_rank());
  if (absl::Status claimed = Claim(ShareOf(reserved)); !claimed.ok()) {
    log::Error(absl::StrCat(Holder(), " runs on, but: ", claimed.message()));
  }
  OnReport(std::move(*account.mutable_report()));
  Feed(Tick{});
}

Session::~Session() {
  *alive_ = false;
  shepherd_->processes().set_patience(core_.grace() + kPatience);
  agent_.reservations.Release(this);
  if (stream_ != nullptr) stream_->Finish(absl::CancelledError("the agent is shutting down"));
}

void Session::Feed(const Event& event) {
  Note(event);
  std::shared_ptr<bool> alive = alive_;
  std::vector<Action> actions = core_.OnEvent(loop_.Now(), event);
  for (Action& action : actions) {
    Do(action);
    if (!*alive) return;
  }
  deadline_.At(core_.NextDeadline(), [this] { Feed(Tick{}); });
}

// For who looks for the reason of a crash.
void Session::Note(const Event& event) const {
  const google::protobuf::Message* message = nullptr;
  if (const auto* request = std::get_if<Request>(&event)) message = &request->request;
  if (message == nullptr) return;
  os::NoteRequest(KindOf(*message), core_.hello().job_id(), owner_.name);
}

void Session::Do(Action& action) {
  if (auto* send = std::get_if<SendEvent>(&action)) {
    // The launcher compares our clocks by it.
    if (send->event.has_heartbeat()) {
      send->event.mutable_heartbeat()->set_unix_nanos(absl::GetCurrentTimeNanos());
    }
    Send(send->event);
  } else if (auto* down = std::get_if<SendShepherd>(&action)) {
    ToShepherd(down->request);
  } else if (std::holds_alternative<OpenChannels>(action)) {
    Open();
  } else if (std::holds_alternative<SendWelcome>(action)) {
    Welcome();
  } else if (std::holds_alternative<PrepareStart>(action)) {
    Prepare();
  } else if (auto* probe = std::get_if<RunProbe>(&action)) {
    Probe(probe->request);
  } else if (auto* hold = std::get_if<HoldPorts>(&action)) {
    Hold(*hold);
  } else if (auto* reserve = std::get_if<ReserveShare>(&action)) {
    Reserve(reserve->reserve);
  } else if (std::holds_alternative<SendInventory>(action)) {
    ReadInventory([this](v1::Inventory inventory) {
      v1::SessionEvent event;
      *event.mutable_inventory() = std::move(inventory);
      Send(event);
    });
  } else if (auto* give = std::get_if<GiveBack>(&action)) {
    agent_.reservations.Release(this);
    if (agent_.self.resumable) {
      Withhold(agent_.reservations, agent_.state_directory, Holder(), give->gpus);
    }
  } else if (std::holds_alternative<LookAtGpus>(action)) {
    Look();
  } else if (std::holds_alternative<KillLeftovers>(action)) {
    EndLeftovers();
  } else if (std::holds_alternative<SkipContainers>(action)) {
    StopRemoval();
  } else if (auto* end = std::get_if<End>(&action)) {
    Stop(std::move(end->status));
  }
}

void Session::ToShepherd(const v1::ShepherdRequest& request) {
  if (request.has_end_job()) status_.SetStopping();
  shepherd_->Send(request).IgnoreError();  // some bytes
}

void Session::Look() {
  agent_.readers.gpus([this, alive = alive_](inventory::GpuReport report) {
    if (*alive)
      Feed(GpusSeen{std::move(report.gpus), std::move(report.error),
                    shepherd_->processes().Living()});
  });
}

void Session::ListenToShepherd() {
  ShepherdChannel::Handlers handlers;
  handlers.on_event = [this](v1::ShepherdEvent event) { OnShepherdEvent(std::move(event)); };
  handlers.on_attached = [this](const v1::Party& shepherd) { OnAttached(shepherd); };
  handlers.on_frame = [this] {
    PumpLauncher();
    Feed(ShepherdAnswers{});
  };
  handlers.on_gone = [this](std::string why) {
    PumpLauncher();
    Feed(ShepherdGone{std::move(why)});
  };
  shepherd_->Listen(std::move(handlers));
}

LogRelay::Handlers Session::LogHandlers() {
  LogRelay::Handlers handlers;
  handlers.ask = [this](const v1::ReadLogs& request) { return shepherd_->ReadLogs(request); };
  handlers.on_broken = [this](std::string why) { shepherd_->Break(std::move(why)); };
  return handlers;
}

void Session::OnShepherdEvent(v1::ShepherdEvent event) {
  switch (event.kind_case()) {
    case v1::ShepherdEvent::kReport:
      OnReport(std::move(*event.mutable_report()));
      break;
    case v1::ShepherdEvent::kEnded:
      if (absl::Status valid = relay_.Finished(event.ended()); !valid.ok()) {
        return shepherd_->Break(std::string(valid.message()));
      }
      Feed(JobEnded{std::move(*event.mutable_ended())});
      break;
    case v1::ShepherdEvent::kBroken:
      shepherd_->Break(Escape(event.broken(), kMostOfWhy));
      break;
    case v1::ShepherdEvent::KIND_NOT_SET:
      Feed(ShepherdAnswers{});
      break;
    case v1::ShepherdEvent::kAccount:   // to those who adopt it
    case v1::ShepherdEvent::kAttached:  // the channel's
      break;
  }
}

void Session::OnReport(v1::Report report) {
  shepherd_->processes().SetPart(core_.hello().job_id(), core_.hello().attempt(),
                                 report.job().node_rank());
  containers_ = RemovablesOf(report);
  relay_.Reported(report);
  // Its word is not enough: it is its user's.
  if (report.unkillable()) shepherd_->processes().KillLiving();
  Feed(ReportedBy(report));
  status_.Set(std::move(*report.mutable_job()));
}

void Session::EndLeftovers() {
  if (containers_.empty()) return EndAll();
  // Removing containers takes the help of the processes that watch them.
  shepherd_->processes().KillShepherd();
  shepherd_->processes().KillMarked();
  RemoveContainers([this] { EndAll(); });
}

void Session::EndAll() {
  shepherd_->processes().EndAll([this] { Feed(LeftoversGone{}); });
}

void Session::Refuse(v1::NodeFailure::Kind kind, int exit_code, std::string message) {
  v1::SessionEvent event;
  v1::NodeFailure& failure = *event.mutable_failure();
  failure.set_kind(kind);
  failure.set_exit_code(exit_code);
  failure.set_message(std::move(message));
  Send(event);
}

void Session::Stop(absl::Status status) {
  deadline_.Cancel();
  // First: when the launcher hears of it and ends, nothing is left here.
  if (directory_.has_value()) directory_->Remove();
  if (stream_ != nullptr) stream_->Finish(std::move(status));
  // The owner destroys us in here.
  std::exchange(on_ended_, nullptr)();
}

}  // namespace dtrain::session
