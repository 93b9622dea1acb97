// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/loop/loop.h"
#include "launcher/transport/agent_binary.h"
#include "launcher/transport/bootstrap.h"
#include "launcher/transport/child.h"
#include "launcher/transport/transport.h"

namespace dtrain::transport {

struct ChildSpec {
  std::vector<std::string> argv;
  std::string shown;             // for messages: "ssh node3"
  AgentBinary* agent = nullptr;  // null: the child is the agent; else it runs a shell
  std::string bridge_flag;       // BridgeFlag(), for an agent that a shell runs
  bool login_shell = false;      // see Bootstrap
  EndPolicy end;
};

// An agent reached over the stdio of one child process. The socket that the child has as stdin is
// gRPC's own: after the handshake no byte passes through us. Loop thread.
class ChildConnection : public Connection {
 public:
  ChildConnection(loop::Loop& loop, ChildReaper& reaper, ChildSpec spec, Callbacks callbacks);
  ~ChildConnection() override;
  absl::Status CloseReason() const override;

 private:
  void Start();
  void OnImages(const AgentBinary::Result& images);
  bool OnNeed();  // false: no more is to be read, and this may be gone
  void OnWaitedLong();
  void StopWaiting();  // for another node that is sent the agent
  void StartPush();
  void OnReadable();
  bool OnBytes(absl::string_view bytes);
  void OnWritable();
  void Push();
  void OnStreamEnd();
  void OnExit();
  void OnEnd();
  void EndHandshake();
  void Ready();
  void Fail(absl::Status status);
  bool SetPhase(Phase phase);  // false: the callback destroyed this
  std::string HowItEnded() const;

  loop::Loop& loop_;
  ChildReaper& reaper_;
  const ChildSpec spec_;
  Callbacks callbacks_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);

  os::Child child_;
  os::UniqueFd stream_;  // until it is handed over; then a duplicate, to end the stream with
  std::unique_ptr<TailReader> error_;
  std::unique_ptr<loop::FdWatch> stream_watch_;
  std::unique_ptr<loop::FdWatch> exit_watch_;
  loop::Timer end_timer_;

  std::optional<Bootstrap> bootstrap_;  // during the handshake
  const AgentImages* images_ = nullptr;
  std::string unwritten_;                      // of the script or the agent
  std::optional<PushOrder::Ticket> ticket_;    // from its `need` line to the end of the handshake
  std::unique_ptr<loop::FdWatch> turn_watch_;  // of the ticket, while it waits
  loop::Timer turn_timer_;
  std::optional<AgentPush> push_;  // while it is sent
  bool begun_told_ = false;
  bool stream_ended_ = false;
  bool ending_ = false;  // end_timer_ runs
  std::optional<os::ExitStatus> exit_;
};

}  // namespace dtrain::transport
