// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <libssh/callbacks.h>

#include <memory>
#include <optional>
#include <string>

#include "launcher/transport/agent_binary.h"
#include "launcher/transport/bootstrap.h"
#include "launcher/transport/ssh_link.h"
#include "launcher/transport/ssh_session.h"

namespace dtrain::transport {

// Runs a remote shell on a session, starts the agent through it, and carries bytes between the
// channel and one end of a socket pair until either ends. Lives on the thread that owns the
// session.
class SshPump {
 public:
  // `bridge_flag`: BridgeFlag().
  SshPump(std::shared_ptr<SshLink> link, SshSession& session, const AgentImages& images,
          PushOrder& order, std::string bridge_flag);
  ~SshPump();
  SshPump(const SshPump&) = delete;
  SshPump& operator=(const SshPump&) = delete;

  // Returns when the stream is over. An error that came before the agent answered is told to the
  // loop as a failure, a later one as the reason for the end.
  void Run();

 private:
  absl::Status OpenChannel();
  absl::Status Carry();     // until the end; OK: ours
  absl::Status OnOutput();  // takes received_ while the handshake lasts
  absl::Status HandOver();
  void DriveSession();  // all that has arrived and all that can be sent
  void OnNeed();
  void StartPush();
  void FillOutgoing();
  void SendOutgoing();
  void WriteLocal();
  void ReadLocal();
  void Farewell();
  bool Wait();  // for something to do; false: given up
  bool ChannelOver() const { return channel_ended_ || !alive_; }
  std::string HowItEnded() const;
  absl::Status Reason() const;

  static int OnData(ssh_session, ssh_channel, void* data, uint32_t len, int is_stderr, void* self);
  static void OnExitStatus(ssh_session, ssh_channel, int status, void* self);
  static void OnExitSignal(ssh_session, ssh_channel, const char* signal, int core,
                           const char* message, const char* language, void* self);
  static void OnEof(ssh_session, ssh_channel, void* self);
  static void OnClose(ssh_session, ssh_channel, void* self);

  const std::shared_ptr<SshLink> link_;
  SshSession& session_;
  const AgentImages& images_;
  PushOrder& order_;
  const std::string bridge_flag_;
  ssh_channel channel_ = nullptr;
  ssh_event event_ = nullptr;
  ssh_channel_callbacks_struct callbacks_ = {};
  struct ssh_counter_struct counter_ = {};

  Bootstrap bootstrap_;
  bool begun_told_ = false;
  bool ready_ = false;
  std::optional<PushOrder::Ticket> ticket_;  // from its `need` line until the agent answers
  TimePoint wait_until_ = kNever;            // for another node that is sent the agent
  std::optional<AgentPush> push_;            // while it is sent

  os::UniqueFd local_;        // our end of the pair, once ready
  bool local_ended_ = false;  // nothing more comes from it
  std::string received_;      // from the channel, not yet taken
  bool left_behind_ = false;  // there is more that libssh holds, for want of room
  std::string outgoing_;      // for the channel
  size_t outgoing_begin_ = 0;
  bool channel_ended_ = false;
  bool alive_ = true;    // the session
  std::string exit_;     // "ended with status 3"; empty: not known
  bool failed_ = false;  // that is not status 0
  bool ending_ = false;  // its output or its process has ended
  Tail stderr_;
};

}  // namespace dtrain::transport
