// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/link/kept_bytes.h"
#include "common/link/link_core.h"
#include "common/link/shared_bytes.h"
#include "common/loop/loop.h"
#include "common/rpc/client_stream.h"
#include "common/rpc/rpc_carrier.h"
#include "common/rpc/unary.h"
#include "dtrain/v1/agent.grpc.pb.h"
#include "launcher/transport/redials.h"
#include "launcher/transport/transport.h"

namespace dtrain {

// A request whose bytes exist once, however many agents or shepherds it is for.
class SharedRequest {
 public:
  explicit SharedRequest(const v1::SessionRequest& request)
      : channel_(link::Channel::kAgent),
        is_last_(request.has_goodbye()),
        bytes_(request.SerializeAsString()) {}
  explicit SharedRequest(const v1::JobRequest& request)
      : channel_(link::Channel::kJob), bytes_(request.SerializeAsString()) {}

 private:
  friend class NodeLink;
  link::Channel channel_;
  bool is_last_ = false;
  link::SharedBytes bytes_;
};

// A heartbeat for an agent and its shepherd.
struct SharedBeat {
  SharedBeat();
  link::SharedBytes to_agent, to_shepherd;
};

// The launcher's line to one agent, and to the shepherd behind it: a transport's byte stream, gRPC
// on it, the Session and Logs calls on that. Destroying it ends all of them. When the stream breaks
// and the agent is one whose sessions outlive that, it connects again, for as long as it is not
// destroyed; whoever uses it sees nothing but silence, and each message and log byte once. Loop
// thread.
class NodeLink {
 public:
  struct Handlers {
    absl::AnyInvocable<void(transport::Phase)> on_phase;
    // SayHello may be called. With the host's address, as Connection has it.
    absl::AnyInvocable<void(std::string address)> on_connected;
    absl::AnyInvocable<void(v1::SessionEvent)> on_event;  // its agent says
    absl::AnyInvocable<void(v1::JobEvent)> on_job_event;  // its shepherd says
    // The session is over, or never was. Once, and nothing after it. OK: the agent said so.
    absl::AnyInvocable<void(absl::Status)> on_closed;
    // Take it, then call NextLogs when there is room for more.
    absl::AnyInvocable<void(v1::LogChunk)> on_logs;
    // OK: all of them were delivered. DATA_LOSS: all that there is; some is lost.
    absl::AnyInvocable<void(absl::Status)> on_logs_end;
    // They broke off, anywhere in a line, and go on when the connection stands again.
    absl::AnyInvocable<void()> on_logs_cut;
  };

  // A session of a launcher that has died, to go on with: it is greeted by itself, and the agent is
  // tried until it answers, for as long as nobody ends it.
  struct Takeover {
    v1::Hello hello;
    std::string boot_id;  // of the machine, as that launcher knew it
  };

  // `redials`, `kept`: of all links of the launch; outlive it.
  NodeLink(loop::Loop& loop, transport::Transport& transport, transport::Redials& redials,
           link::KeptBytes& kept, const transport::Target& target, Handlers handlers,
           std::optional<Takeover> takeover = std::nullopt);
  ~NodeLink();
  NodeLink(const NodeLink&) = delete;
  NodeLink& operator=(const NodeLink&) = delete;

  // Begins the session, on the connection that stands; once.
  void SayHello(const v1::Hello& hello);
  // UNAVAILABLE: there is no room in `kept`, and nothing has changed. What else goes wrong,
  // on_closed tells.
  absl::Status Send(const SharedRequest& request);
  void Beat(const SharedBeat& beat);
  // What its agent and shepherd have not acknowledged.
  size_t kept_bytes() const { return kept_bytes_of(agent_) + kept_bytes_of(job_); }
  // Ends it, and lets go of what it keeps. on_closed tells why, later.
  void GiveUp(absl::Status why);
  // `most_data`: bytes of a chunk.
  void OpenLogs(const std::string& job_id, uint32_t attempt, uint32_t most_data);
  void NextLogs();
  // Of a job that is kept on disk: the agent is told that bytes are taken when SetSafe says so, and
  // not before. Before OpenLogs, SetSafe also says where to begin.
  void KeepUntilSafe() { safe_counts_ = true; }
  void SetSafe(const v1::LogPosition& position);
  // How much of each output was handed over.
  void AddTaken(std::vector<v1::LogPosition>& to) const;
  // For when nothing is heard: another connection, beside the one that there is, which takes its
  // place if it stands before anything is heard. Called again it looks for one more, unless the
  // other host answers the last one. Nothing where sessions end with their connection.
  void DialAnew();

 private:
  using LogKey = std::pair<uint32_t, v1::StreamKind>;
  struct LogProgress {
    uint64_t taken = 0;     // handed over up to here
    uint64_t safe = 0;      // of which the agent may know
    uint64_t reported = 0;  // of which it knows
  };

  Duration Lease() const { return std::chrono::milliseconds(hello_.lease_ms()); }
  static size_t kept_bytes_of(const std::optional<link::LinkCore>& core) {
    return core ? core->kept_bytes() : 0;
  }
  bool MayResume() const { return resumable_ && job_ && (takes_over_ || job_->last() != 0); }
  void Connect();
  void Open(os::UniqueFd stream);
  void DropStream();
  void DropSpare();
  void Greet();
  void OnOpened(grpc::ByteBuffer& bytes);
  std::optional<link::Frame> Next();
  void Pump();
  void OnFrame(const link::Frame& frame);
  void OnAgentEvent(v1::SessionEvent event);
  void OnJobEvent(v1::JobEvent event);
  void OnAttached(const v1::Party& shepherd);
  void OnLogChunk(v1::LogChunk chunk);
  void OpenLogStream();
  void ReportTaken();
  void CheckKept();
  void Closed(absl::Status status);
  void Lost(absl::Status why);
  void AskForBoot(absl::Status gone);

  loop::Loop& loop_;
  transport::Transport& transport_;
  transport::Redials& redials_;
  const transport::Target target_;
  Handlers handlers_;
  std::unique_ptr<transport::Connection> connection_;
  std::unique_ptr<transport::Connection> spare_;  // DialAnew's, not standing yet
  bool spare_answered_ = false;                   // the other host did, at least
  std::optional<rpc::Library> grpc_;              // from the first stream on
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Agent::Stub> stub_;
  std::optional<rpc::ClientCarrier> session_;
  std::optional<rpc::ClientReader<v1::LogChunk>> logs_;
  std::optional<rpc::ClientCall<v1::NodeStatusRequest, v1::NodeReport>> boot_asked_;
  loop::Timer reason_wait_;
  // What a resumed session needs.
  v1::Hello hello_;
  std::string boot_id_;     // of the machine that welcomed us
  bool resumable_ = false;  // the agent said so, and workers may run there
  bool resuming_ = false;   // connected again or about to be, not welcomed yet
  bool takes_over_ = false;
  bool elsewhere_ = false;  // with the node's resident agent, not with the user's private one
  // Until it was given up.
  std::optional<link::LinkCore> agent_;  // channel 0
  std::optional<link::LinkCore> job_;    // channel 1
  loop::Timer due_;
  bool leaving_ = false;   // Goodbye was said
  bool finished_ = false;  // of which an agent says again what its shepherd may have said
  std::optional<v1::LogsRequest> logs_request_;
  std::map<LogKey, LogProgress> log_progress_;
  bool logs_over_ = false;
  bool safe_counts_ = false;
  bool reports_taken_ = false;                 // its agent keeps the job for another launcher
  std::optional<v1::SessionEvent> kept_said_;  // until we have all output that it names
  int unanswered_ = 0;                         // chunks handed over and not taken yet
  bool reader_waits_ = false;                  // one of them is the open stream's
  TimePoint lost_at_;                          // the last time
  int tries_ = 0;                              // to resume that have failed in a row
  transport::Redials::Place place_;            // of the try that waits or is under way
  transport::Redials::Place spare_place_;      // of DialAnew's
  loop::Timer retry_;
  loop::Timer drop_spare_;
  bool given_up_ = false;
  loop::Timer give_up_;
};

}  // namespace dtrain
