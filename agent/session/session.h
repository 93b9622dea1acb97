// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "agent/containers/removal.h"
#include "agent/inventory/held_ports.h"
#include "agent/inventory/nvml.h"
#include "agent/inventory/probe.h"
#include "agent/session/job_directory.h"
#include "agent/session/job_status.h"
#include "agent/session/log_relay.h"
#include "agent/session/reservations.h"
#include "agent/session/session_core.h"
#include "agent/session/shepherd_channel.h"
#include "common/link/link_core.h"
#include "common/loop/loop.h"
#include "common/rpc/rpc_carrier.h"

namespace dtrain::session {

// Reads this node's inventory, all but the probe fields, and hands it over on the loop: at once
// or, where GPUs must be asked, later.
using ReadInventory = absl::AnyInvocable<void(absl::AnyInvocable<void(v1::Inventory)>)>;
// Looks at the GPUs again; hands over on the loop what is seen, or that a driver hangs.
using ReadGpus = absl::AnyInvocable<void(absl::AnyInvocable<void(inventory::GpuReport)>)>;
struct Readers {
  ReadInventory inventory;
  ReadGpus gpus;
  // For who only wants to know: what was read within the last second serves as well, and without
  // an answer of the driver it comes without GPUs.
  ReadInventory status;
  // For a job that has no use for GPUs: at once, without them.
  ReadInventory without_gpus;
};

using spawn::Owner;

// One launcher's session: carries out what SessionCore decides. Loop thread.
class Session {
 public:
  using Stream = rpc::ServerCarrier;
  // What a session has of its agent. References outlive it.
  struct Surroundings {
    loop::Loop& loop;
    Readers& readers;
    Reservations& reservations;
    Identity self;
    std::string state_directory;  // when self.resumable
  };

  // `on_ended` destroys the session. Once.
  Session(Surroundings surroundings, Owner owner, std::unique_ptr<ShepherdChannel> shepherd,
          std::shared_ptr<Stream> stream, loop::Task on_ended);
  // Of a job that an agent before us has started.
  Session(Surroundings surroundings, Owner owner, std::unique_ptr<ShepherdChannel> shepherd,
          v1::Account account, const v1::JobRecord& record, JobDirectory directory,
          loop::Task on_ended);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // The stream's first message, which somebody else has read.
  void Begin(const v1::Hello& hello);
  // The stream ended before it was handed over.
  void OnStreamClosed();
  bool CanResume(const v1::Hello& hello) const { return core_.CanResume(hello); }
  void Resume(std::shared_ptr<Stream> stream, const v1::Hello& hello);

  const Owner& owner() const { return owner_; }
  // Its launcher has come, and has not started the job here yet.
  bool starting() const {
    return core_.state() == SessionCore::State::kNew ||
           core_.state() == SessionCore::State::kJoined;
  }
  const v1::Hello& hello() const { return core_.hello(); }  // empty before the Hello
  // Its launcher is not connected and may come back.
  bool away() const { return core_.away(); }
  void AttachLogs(std::shared_ptr<LogRelay::Writer> writer, const v1::LogsRequest& request) {
    relay_.Attach(std::move(writer), request);
  }

  // For others than the launcher.
  v1::JobOnNode Describe() const;
  LogRelay& logs() { return relay_; }
  // Ends the job as its launcher would, who is told the message. False: it is over already.
  bool StopBy(std::string message);

 private:
  Session(Surroundings surroundings, Owner owner, SessionCore core,
          std::unique_ptr<ShepherdChannel> shepherd, loop::Task on_ended);
  // The launcher.
  void Listen(std::shared_ptr<Stream> stream);
  void Open();
  void OnAttached(const v1::Party& shepherd);
  std::optional<link::Frame> NextToLauncher();
  void OnFrame(link::Frame frame);
  absl::Status OnAgentFrame(const link::Frame& frame);
  absl::Status OnJobFrame(link::Frame frame);
  void Send(const v1::SessionEvent& event);
  void PumpLauncher();
  void BreakLauncher(absl::Status why);
  // The shepherd.
  void ListenToShepherd();
  LogRelay::Handlers LogHandlers();
  void OnShepherdEvent(v1::ShepherdEvent event);
  void OnReport(v1::Report report);
  void ToShepherd(const v1::ShepherdRequest& request);
  // The core.
  void Feed(const Event& event);
  void Note(const Event& event) const;
  void Do(Action& action);
  void Prepare();
  bool PrepareAgent();  // false: it was refused
  void DropStart();
  absl::Status Claim(absl::StatusOr<Share> share);
  absl::Status WriteRecord();
  std::string Holder() const;
  void Reserve(const v1::Reserve& reserve);
  void ReadInventory(absl::AnyInvocable<void(v1::Inventory)> then);
  void Welcome();
  void Probe(const v1::ProbeRequest& request);
  void Hold(const HoldPorts& hold);
  void GiveHeldPorts();
  void Look();
  void EndLeftovers();
  void EndAll();
  void RemoveContainers(loop::Task then);
  void StopRemoval();
  void WarnOfContainers(const std::string& what);
  void Stop(absl::Status status);
  void Refuse(v1::NodeFailure::Kind kind, int exit_code, std::string message);

  const Surroundings agent_;
  loop::Loop& loop_;
  const Owner owner_;
  const int64_t since_unix_nanos_;
  SessionCore core_;
  JobStatus status_;
  loop::Task on_ended_;
  std::shared_ptr<Stream> stream_;  // null: its launcher is yet to come back
  v1::Hello greeting_;              // of that stream
  link::LinkCore link_;             // channel 0
  loop::Timer link_due_;
  bool dropped_ = false;                   // the start was: the shepherd gets nothing any more
  std::optional<JobDirectory> directory_;  // when resumable, from the Hello on
  std::vector<v1::Gpu> gpus_before_;       // until the start
  std::optional<v1::Reserve> reserved_;    // what is
  std::unique_ptr<inventory::ProbeListener> probe_listener_;
  std::unique_ptr<inventory::Prober> prober_;
  std::optional<inventory::HeldPorts> held_ports_;
  LogRelay relay_;
  std::unique_ptr<ShepherdChannel> shepherd_;
  std::vector<containers::Removable> containers_;  // as its shepherd has reported
  std::unique_ptr<containers::Removal> removal_;
  loop::Timer deadline_;
  std::shared_ptr<bool> alive_;
};

}  // namespace dtrain::session
