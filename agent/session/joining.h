// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "agent/inventory/held_ports.h"
#include "agent/inventory/probe.h"
#include "agent/session/holdings.h"
#include "agent/session/shepherd_channel.h"
#include "agent/session/surroundings.h"

namespace dtrain::session {

// A session until its job has started: what the launcher learns of the node, holds there and
// reserves. Loop thread.
class Joining {
 public:
  struct Handlers {
    absl::AnyInvocable<void(const v1::SessionEvent& event)> tell;  // the launcher
    absl::AnyInvocable<void(std::vector<v1::Gpu> gpus)> on_gpus;   // as they are before the job
  };
  // `hello`: outlives this, and is empty until the launcher has said it.
  Joining(const Surroundings& agent, const v1::Hello& hello, Holdings& holdings,
          ShepherdChannel& shepherd, Handlers handlers)
      : agent_(agent),
        hello_(hello),
        holdings_(holdings),
        shepherd_(shepherd),
        handlers_(std::move(handlers)),
        earlier_(agent.loop) {}
  ~Joining() { *alive_ = false; }
  Joining(const Joining&) = delete;
  Joining& operator=(const Joining&) = delete;

  // What SessionCore asks for.
  void Do(const SendWelcome& welcome);
  void Do(const SendInventory& inventory);
  void Do(const RunProbe& probe);
  void Do(const HoldPorts& hold);
  void Do(const ReserveShare& reserve);
  // Another launcher has come: it is to be told what the node has by now.
  void WelcomeAgain(absl::AnyInvocable<void(const v1::SessionEvent& welcome)> then);

  // Gives the shepherd what it needs before its part, which comes with the frames. False: the job
  // does not begin here, and the launcher has been told why.
  bool Prepare();

  // Whether processes of ours outlive the launcher's connection here.
  static absl::Status MayBeLeft();
  // While workers run, of an agent without a folder of the job: makes one in `state`, for an agent
  // that comes after us, and tells the shepherd to wait for that. `used`: see ReportedJob. The
  // error says why it cannot be.
  absl::Status PrepareToBeLeft(const std::string& state, v1::Reserve used);
  // After that: leaves the job to the next agent, and this process with it. False: it cannot be
  // found, which was logged.
  bool Leave();

 private:
  bool PrepareResident();
  absl::Status KeepRunning(const std::string& log);
  void GiveHeldPorts();
  void TellWelcome(v1::SessionEvent event);
  v1::SessionEvent WelcomeEvent() const;
  void ReadInventory(absl::AnyInvocable<void(v1::Inventory)> then);
  void Refuse(v1::NodeFailure::Kind kind, int exit_code, std::string message);

  const Surroundings& agent_;
  const v1::Hello& hello_;
  Holdings& holdings_;
  ShepherdChannel& shepherd_;
  Handlers handlers_;
  std::vector<v1::Gpu> gpus_before_;
  std::unique_ptr<inventory::ProbeListener> probe_listener_;
  std::unique_ptr<inventory::Prober> prober_;
  std::optional<inventory::HeldPorts> held_ports_;
  bool looking_ = false;  // for the launcher
  loop::Timer earlier_;   // while an earlier attempt has processes here
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dtrain::session
