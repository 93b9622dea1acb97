// SPDX-License-Identifier: Apache-2.0
#include "agent/session/session.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "agent/inventory/limits.h"
#include "agent/session/withheld_gpus.h"
#include "common/base/exit_code.h"
#include "common/base/text.h"
#include "common/log/log.h"
#include "common/os/crash.h"
#include "common/os/process_tree.h"

namespace dtrain::session {
namespace {

// For a shepherd that has no session any more to end, beyond the grace of its workers.
constexpr Duration kPatience = std::chrono::seconds(10);

std::vector<uint32_t> LivingOf(const v1::Started& started) {
  std::vector<uint32_t> out;
  for (const v1::WorkerStarted& worker : started.workers()) {
    if (os::StartTime(static_cast<pid_t>(worker.pid()))) out.push_back(worker.pid());
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
      relay_(
          loop_,
          [this](uint32_t rank, v1::StreamKind kind, uint64_t offset) {
            // A launcher that may come back says itself how far it has come.
            if (agent_.self.resumable) return;
            v1::ShepherdRequest request;
            v1::LogPosition& delivered = *request.mutable_job()->mutable_log_taken();
            delivered.set_rank(rank);
            delivered.set_stream(kind);
            delivered.set_offset(offset);
            shepherd_->Send(request).IgnoreError();  // some bytes
          },
          [this](uint32_t rank, const std::string& why) {
            v1::SessionEvent event;
            event.mutable_warning()->set_message(
                absl::StrCat("the output of rank ", rank, " waits: ", why,
                             "; nothing is lost if it can be read again"));
            Send(std::move(event));
          }),
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
                 const v1::Account& account, uint64_t taken, JobDirectory directory,
                 loop::Task on_ended)
    : Session(surroundings, owner,
              SessionCore(surroundings.self, surroundings.loop.Now(), account, taken),
              std::move(shepherd), std::move(on_ended)) {
  directory_ = std::move(directory);
  const v1::JobPart& part = account.part();
  shepherd_->processes().SetPart(part.job_id(), part.attempt(), part.node_rank());
  containers_ = containers::RemovablesOf(part);
  relay_.Expect(part);
  if (absl::Status claimed = Claim(ShareOf(part)); !claimed.ok()) {
    log::Error(absl::StrCat(Holder(), " runs on, but: ", claimed.message()));
  }
  status_.Adopt(account, LivingOf(account.started()));
  // What was said before us tells how far the job is.
  v1::ShepherdRequest request;
  request.mutable_replay();
  shepherd_->Send(request).IgnoreError();  // some bytes
  Feed(Tick{});
}

Session::~Session() {
  *alive_ = false;
  shepherd_->processes().set_patience(core_.grace() + kPatience);
  log_waiters_.WakeAll(loop_);
  agent_.reservations.Release(this);
  if (stream_ != nullptr) stream_->Finish(absl::CancelledError("the agent is shutting down"));
}

void Session::Listen(std::shared_ptr<Stream> stream) {
  if (stream_ != nullptr)
    stream_->Finish(absl::UnavailableError("this session has another stream now"));
  stream_ = std::move(stream);
  // Of a stream that was replaced nothing counts any more.
  const std::weak_ptr<Stream> from = stream_;
  auto current = [this, alive = alive_, from] { return *alive && from.lock() == stream_; };
  stream_->Start(
      [this, current](v1::SessionRequest request) {
        if (current()) Feed(Request{std::move(request)});
      },
      [this, current] {
        if (current()) OnStreamClosed();
      });
}

void Session::OnStreamClosed() {
  const std::shared_ptr<bool> alive = alive_;
  Feed(LauncherGone{});
  // The call is over, or its connection could not be.
  if (*alive && agent_.self.resumable && stream_ != nullptr) {
    std::exchange(stream_, nullptr)->Finish(absl::CancelledError("the launcher is gone"));
  }
}

void Session::ListenToShepherd() {
  shepherd_->Listen([this](v1::ShepherdEvent event,
                           os::UniqueFd fd) { OnShepherdEvent(std::move(event), std::move(fd)); },
                    [this](std::string why) { Feed(ShepherdGone{std::move(why)}); });
}

void Session::Resume(std::shared_ptr<Stream> stream, const v1::Hello& hello) {
  Listen(std::move(stream));
  Feed(Resumed{hello});
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
  if (const auto* told = std::get_if<FromShepherd>(&event)) {
    message = &told->event;
    if (told->event.has_job()) message = &told->event.job();
  }
  if (message == nullptr) return;
  os::NoteRequest(KindOf(*message), core_.hello().job_id(), owner_.name);
}

void Session::Do(Action& action) {
  if (auto* send = std::get_if<SendEvent>(&action)) {
    // The launcher compares our clocks by it.
    if (send->event.has_heartbeat()) {
      send->event.mutable_heartbeat()->set_unix_nanos(absl::GetCurrentTimeNanos());
    }
    Send(std::move(send->event));
  } else if (auto* down = std::get_if<SendShepherd>(&action)) {
    ToShepherd(down->request);
  } else if (auto* welcome = std::get_if<SendWelcome>(&action)) {
    Welcome(*welcome);
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
      Send(std::move(event));
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
  } else if (auto* end = std::get_if<End>(&action)) {
    Stop(std::move(end->status));
  }
}

void Session::Send(v1::SessionEvent event) {
  if (stream_ != nullptr) stream_->Send(std::move(event));
}

void Session::ToShepherd(v1::ShepherdRequest& request) {
  status_.ToShepherd(request.job());
  if (request.job().has_start()) {
    const v1::JobPart& part = request.job().start();
    shepherd_->processes().SetPart(part.job_id(), part.attempt(), part.node_rank());
    containers_ = containers::RemovablesOf(part);
    if (!PrepareStart(part)) return DropStart(request.sequence());
    relay_.Expect(part);
    if (part.has_meeting()) GiveHeldPorts(part);
  }
  const absl::Status sent = shepherd_->Send(request);
  if (sent.ok()) return;
  Refuse(v1::NodeFailure::KIND_RESOURCES, kExitStartAgents,
         absl::StrCat("to the shepherd, dtrain's process that owns the workers: ", sent.message()));
  if (request.job().has_start()) DropStart(request.sequence());
}

// The servers of the ranks listen there; they outlive us, as the ranks do. One that does not come
// is missed by the shepherd, which knows for what.
void Session::GiveHeldPorts(const v1::JobPart& part) {
  if (!held_ports_) return;
  const v1::NodeNetwork& network = part.network();
  for (const uint32_t port : {network.rendezvous_port(), network.master_port()}) {
    if (port == network.master_port() && !part.agent_store()) continue;
    v1::ShepherdRequest held;
    held.mutable_held_port()->set_port(port);
    shepherd_->Send(held, held_ports_->SocketOf(port)).IgnoreError();  // some bytes
  }
}

// There is no job then. The stop takes the start's number, and ends a shepherd that has no part.
void Session::DropStart(uint64_t sequence) {
  v1::ShepherdRequest stop;
  stop.set_sequence(sequence);
  stop.mutable_job()->mutable_stop();
  shepherd_->Send(stop).IgnoreError();  // some bytes
}

// What a resident agent does first: an agent after it must be able to answer for the job.
bool Session::PrepareStart(const v1::JobPart& part) {
  if (!directory_.has_value()) {
    if (!agent_.self.resumable) return true;
    // Its launcher was told, and goes on all the same.
    Refuse(v1::NodeFailure::KIND_REFUSED, kExitState, "the job has no folder on this node");
    return false;
  }
  // It was reserved, if the launcher is one of ours.
  if (absl::Status claimed = Claim(ShareOf(part)); !claimed.ok()) {
    Refuse(v1::NodeFailure::KIND_REFUSED, kExitStartAgents, std::string(claimed.message()));
    return false;
  }
  if (absl::Status written = WriteRecord(part); !written.ok()) {
    Refuse(v1::NodeFailure::KIND_REFUSED, kExitState, std::string(written.message()));
    return false;
  }
  v1::ShepherdRequest keep;
  *keep.mutable_keep_running()->mutable_hello() = core_.hello();
  for (v1::Gpu& gpu : gpus_before_) {
    *keep.mutable_keep_running()->add_gpus_before() = std::move(gpu);
  }
  const os::UniqueFd socket = directory_->TakeSocket();
  const absl::Status sent = shepherd_->Send(keep, socket.get());
  if (!sent.ok()) {
    Refuse(v1::NodeFailure::KIND_RESOURCES, kExitStartAgents, std::string(sent.message()));
  }
  return sent.ok();
}

absl::Status Session::WriteRecord(const v1::JobPart& part) {
  v1::JobRecord record;
  record.set_job_id(part.job_id());
  record.set_attempt(part.attempt());
  record.set_node_rank(part.node_rank());
  record.set_boot_id(os::BootId());
  shepherd_->processes().Save(record);
  GpuRelease gpus;
  gpus.Before(gpus_before_);
  gpus.Start(part);
  if (gpus.watched()) {
    *record.mutable_gpus() = gpus.Save();
    record.mutable_gpus()->set_holder(Holder());
  }
  return directory_->Write(record);
}

void Session::Welcome(const SendWelcome& what) {
  v1::SessionEvent event;
  v1::Welcome& welcome = *event.mutable_welcome();
  welcome.set_job_id(core_.hello().job_id());
  welcome.set_attempt(core_.hello().attempt());
  welcome.set_incarnation(core_.hello().incarnation());
  welcome.set_resumable(agent_.self.resumable);
  if (what.resumed) {
    welcome.set_resumed(true);
    welcome.set_received(what.received);
    return Send(std::move(event));
  }
  if (agent_.self.resumable) {
    auto made =
        JobDirectory::Make(agent_.state_directory, core_.hello().job_id(), core_.hello().attempt(),
                           /*with_socket=*/!shepherd_->processes().is_prepared());
    if (!made.ok()) {
      return Refuse(v1::NodeFailure::KIND_STATE, kExitState, std::string(made.status().message()));
    }
    directory_ = *std::move(made);
  }
  auto listener = inventory::ProbeListener::Make(loop_, core_.hello().probe_token());
  if (!listener.ok()) {
    return Refuse(
        v1::NodeFailure::KIND_RESOURCES, kExitStartAgents,
        absl::StrCat("open a port for reachability probes: ", listener.status().message()));
  }
  probe_listener_ = *std::move(listener);
  ReadInventory([this, event = std::move(event)](v1::Inventory inventory) mutable {
    // A launcher that did not wait for it, and started, needs no Welcome any more.
    if (probe_listener_ == nullptr) return;
    gpus_before_ = {inventory.gpus().begin(), inventory.gpus().end()};
    Feed(GpusSeen{gpus_before_, "", {}});
    inventory.set_probe_port(probe_listener_->port());
    inventory.set_probe_reply(probe_listener_->reply());
    *event.mutable_welcome()->mutable_inventory() = std::move(inventory);
    Send(std::move(event));
  });
}

// For as long as we live.
void Session::ReadInventory(absl::AnyInvocable<void(v1::Inventory)> then) {
  auto& read = core_.hello().no_gpus() ? agent_.readers.without_gpus : agent_.readers.inventory;
  read([this, alive = alive_, then = std::move(then)](v1::Inventory inventory) mutable {
    if (!*alive) return;
    for (std::string& warning : inventory::WarningsOf(
             inventory::ReadLockedMemory({}, shepherd_->processes().shepherd_pid()))) {
      inventory.add_warnings(std::move(warning));
    }
    if (shepherd_->processes().is_prepared()) inventory.set_cgroup_writable(true);
    if (agent_.self.resumable) {
      Mark(agent_.reservations, agent_.state_directory, this, inventory);
    }
    then(std::move(inventory));
  });
}

std::string Session::Holder() const {
  return absl::StrCat("job ", Escape(core_.hello().job_id(), 64), " of ", Escape(owner_.name, 64));
}

absl::Status Session::Claim(absl::StatusOr<Share> share) {
  if (!share.ok()) return share.status();
  return agent_.reservations.Reserve(this, Holder(), *std::move(share));
}

void Session::Reserve(const v1::Reserve& reserve) {
  const absl::Status claimed = Claim(ShareOf(reserve));
  v1::SessionEvent event;
  event.mutable_reserved()->set_refused(std::string(claimed.message()));
  Send(std::move(event));
}

void Session::Probe(const v1::ProbeRequest& request) {
  prober_ = std::make_unique<inventory::Prober>(loop_, request, [this](v1::ProbeReport report) {
    v1::SessionEvent event;
    *event.mutable_probe_report() = std::move(report);
    Send(std::move(event));
    prober_.reset();
  });
}

void Session::Hold(const HoldPorts& hold) {
  auto held = inventory::HeldPorts::Hold(hold.count, hold.listening);
  if (!held.ok()) {
    return Refuse(v1::NodeFailure::KIND_RESOURCES, kExitStartAgents,
                  absl::StrCat("reserve ", hold.count, " TCP ports: ", held.status().message()));
  }
  held_ports_ = *std::move(held);
  v1::SessionEvent event;
  for (uint16_t port : held_ports_->ports()) event.mutable_ports_held()->add_ports(port);
  Send(std::move(event));
}

void Session::Look() {
  agent_.readers.gpus([this, alive = alive_](inventory::GpuReport report) {
    if (*alive)
      Feed(GpusSeen{std::move(report.gpus), std::move(report.error),
                    shepherd_->processes().Living()});
  });
}

void Session::OnShepherdEvent(v1::ShepherdEvent event, os::UniqueFd fd) {
  if (event.has_log_opened()) {
    const absl::Status opened = relay_.Opened(
        event.log_opened().rank(), event.log_opened().stream(), std::move(fd), owner_.uid);
    if (!opened.ok()) shepherd_->Break(std::string(opened.message()));
    return;
  }
  if (event.has_log_grown()) {
    const v1::LogGrown& grown = event.log_grown();
    relay_.Grown(grown.rank(), grown.stream(), grown.size());
    log_waiters_.WakeAll(loop_);
    return;
  }
  const v1::SessionEvent& job = event.job();
  if (job.has_started()) {
    relay_.Started(job.started());
    // No probe can come any more, and a worker may want any port.
    probe_listener_.reset();
  }
  if (job.has_finished()) {
    relay_.Finished(job.finished());
    log_waiters_.WakeAll(loop_);
  }
  // Its word is not enough: it is its user's.
  if (job.failure().kind() == v1::NodeFailure::KIND_CLEANUP) {
    shepherd_->processes().KillLiving();
  }
  status_.FromShepherd(job);
  Feed(FromShepherd{std::move(event)});
}

void Session::EndLeftovers() {
  if (containers_.empty()) return EndAll();
  // Removing containers takes the help of the processes that watch them.
  shepherd_->processes().KillShepherd();
  shepherd_->processes().KillMarked();
  RemoveContainers([this] { EndAll(); });
}

void Session::EndAll() {
  relay_.Finished(v1::Finished());
  log_waiters_.WakeAll(loop_);
  shepherd_->processes().EndAll([this] { Feed(LeftoversGone{}); });
}

void Session::Refuse(v1::NodeFailure::Kind kind, int exit_code, std::string message) {
  v1::SessionEvent event;
  v1::NodeFailure& failure = *event.mutable_failure();
  failure.set_kind(kind);
  failure.set_exit_code(exit_code);
  failure.set_message(std::move(message));
  Send(std::move(event));
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
