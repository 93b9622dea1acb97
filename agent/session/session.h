// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "agent/inventory/held_ports.h"
#include "agent/inventory/nvml.h"
#include "agent/inventory/probe.h"
#include "agent/session/log_relay.h"
#include "agent/session/session_core.h"
#include "agent/session/shepherd_process.h"
#include "common/loop/loop.h"
#include "common/rpc/server_stream.h"

namespace dtrain::session {

// Reads this node's inventory, all but the probe fields, and hands it over on the loop: at once
// or, where GPUs must be asked, later.
using ReadInventory = absl::AnyInvocable<void(absl::AnyInvocable<void(v1::Inventory)>)>;
// Looks at the GPUs again; hands over on the loop what is seen, or never when a driver hangs.
using ReadGpus = absl::AnyInvocable<void(absl::AnyInvocable<void(inventory::GpuReport)>)>;
struct Readers {
  ReadInventory inventory;
  ReadGpus gpus;
};

// One launcher's session: carries out what SessionCore decides. Loop thread.
class Session {
 public:
  using Stream = rpc::ServerStream<v1::SessionRequest, v1::SessionEvent>;

  Session(loop::Loop& loop, Identity self, std::shared_ptr<Stream> stream,
          std::unique_ptr<ShepherdProcess> shepherd, Readers& readers, loop::Task on_ended);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Empty before the Hello.
  const std::string& job_id() const { return core_.hello().job_id(); }
  void AttachLogs(std::shared_ptr<LogRelay::Writer> writer) { relay_.Attach(std::move(writer)); }

 private:
  void Feed(const Event& event);
  void Do(Action& action);
  void Welcome();
  void Probe(const v1::ProbeRequest& request);
  void Hold(uint32_t count);
  void Look();
  std::vector<uint32_t> Living() const;
  void OnShepherdEvent(v1::ShepherdEvent event, os::UniqueFd fd);
  void KillLeftoversUntilGone(TimePoint deadline);
  void Stop(absl::Status status);
  void Refuse(std::string message);

  loop::Loop& loop_;
  SessionCore core_;
  std::shared_ptr<Stream> stream_;
  Readers& readers_;
  loop::Task on_ended_;
  std::unique_ptr<inventory::ProbeListener> probe_listener_;
  std::unique_ptr<inventory::Prober> prober_;
  std::optional<inventory::HeldPorts> held_ports_;
  LogRelay relay_;
  std::unique_ptr<ShepherdProcess> shepherd_;
  std::string job_cgroup_;  // name, once a part was given to the shepherd
  loop::Timer deadline_;
  loop::Timer leftovers_;
  std::shared_ptr<bool> alive_;
};

}  // namespace dtrain::session
