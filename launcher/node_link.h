// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/base/outbox.h"
#include "common/loop/loop.h"
#include "common/rpc/client_stream.h"
#include "common/rpc/shared_message.h"
#include "common/rpc/unary.h"
#include "dtrain/v1/agent.grpc.pb.h"
#include "launcher/transport/redials.h"
#include "launcher/transport/transport.h"

namespace dtrain {

// A request whose bytes exist once, however many agents it is for.
class SharedRequest {
 public:
  // Without `sequence` and `received`, which are each link's own.
  explicit SharedRequest(const v1::SessionRequest& request)
      : kind_(request.kind_case()), bytes_(request) {}
  // `common` merged with `own`, of the same kind.
  SharedRequest(const SharedRequest& common, const v1::SessionRequest& own)
      : kind_(common.kind_), bytes_(common.bytes_.And(own)) {}

 private:
  friend class NodeLink;
  v1::SessionRequest::KindCase kind_;
  rpc::SharedMessage bytes_;
};

// The launcher's line to one agent: a transport's byte stream, gRPC on it, the Session and Logs
// calls on that. Destroying it ends all of them. When the stream breaks and the agent is one whose
// sessions outlive that, it connects again, for as long as it is not destroyed; whoever uses it
// sees nothing but silence, and each message and log byte once. Loop thread.
class NodeLink {
 public:
  struct Handlers {
    absl::AnyInvocable<void(transport::Phase)> on_phase;
    absl::AnyInvocable<void()> on_connected;  // Send may be called from now on
    absl::AnyInvocable<void(v1::SessionEvent)> on_event;
    // The session is over, or never was. Once, and nothing after it. OK: the agent said so.
    absl::AnyInvocable<void(absl::Status)> on_closed;
    // Take it, then call NextLogs when there is room for more.
    absl::AnyInvocable<void(v1::LogChunk)> on_logs;
    absl::AnyInvocable<void(absl::Status)> on_logs_end;  // OK: all of them were delivered
  };

  // `redials`: of all links of the launch; outlives it.
  NodeLink(loop::Loop& loop, transport::Transport& transport, transport::Redials& redials,
           const transport::Target& target, Handlers handlers);
  ~NodeLink();
  NodeLink(const NodeLink&) = delete;
  NodeLink& operator=(const NodeLink&) = delete;

  void Send(const v1::SessionRequest& request);
  void Send(const SharedRequest& request);
  void OpenLogs(const std::string& job_id, uint32_t attempt);
  void NextLogs();
  // For when nothing is heard: another connection, beside the one that there is, which takes its
  // place if it stands before anything is heard. Called again it looks for one more, unless the
  // other host answers the last one. Nothing where sessions end with their connection.
  void DialAnew();

 private:
  using LogKey = std::pair<uint32_t, v1::StreamKind>;
  // One that is kept until it is acknowledged.
  struct Kept {
    rpc::SharedMessage bytes;
    uint64_t number = 0;
    uint64_t sequence() const { return number; }
    void set_sequence(uint64_t value) { number = value; }
    size_t ByteSizeLong() const { return bytes.size(); }
  };
  struct LogProgress {
    uint64_t taken = 0;     // handed over up to here
    uint64_t reported = 0;  // of which the agent knows
  };

  Duration Lease() const { return std::chrono::milliseconds(hello_.lease_ms()); }
  bool MayResume() const { return resumable_ && outbox_.last() != 0; }
  void Connect();
  void Open(os::UniqueFd stream);
  void DropStream();
  void DropSpare();
  void OnEvent(v1::SessionEvent event);
  void OnResumed(const v1::Welcome& welcome);
  void OnLogChunk(v1::LogChunk chunk);
  void OpenLogStream();
  void ReportTaken(const LogKey& key, LogProgress& progress);
  void Write(const rpc::SharedMessage& bytes, uint64_t sequence);
  void Closed(absl::Status status);
  void Lost(absl::Status why);
  void AskForBoot(absl::Status gone);
  void Overflow();

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
  std::optional<rpc::ClientStream<v1::SessionRequest, v1::SessionEvent>> session_;
  std::optional<rpc::ClientReader<v1::LogChunk>> logs_;
  std::optional<rpc::ClientCall<v1::NodeStatusRequest, v1::NodeReport>> boot_asked_;
  loop::Timer reason_wait_;
  // What a resumed session needs.
  v1::Hello hello_;
  std::string boot_id_;     // of the machine that welcomed us
  bool resumable_ = false;  // the agent said so, and workers may run there
  bool resuming_ = false;   // connected again or about to be, not welcomed yet
  Outbox<Kept> outbox_;
  Inbox inbox_;
  Inbox own_inbox_;  // of what the agent itself says, not the shepherd
  std::optional<v1::LogsRequest> logs_request_;
  std::map<LogKey, LogProgress> log_progress_;
  bool logs_over_ = false;
  int unanswered_ = 0;                     // chunks handed over and not taken yet
  bool reader_waits_ = false;              // one of them is the open stream's
  TimePoint lost_at_;                      // the last time
  int tries_ = 0;                          // to resume that have failed in a row
  transport::Redials::Place place_;        // of the try that waits or is under way
  transport::Redials::Place spare_place_;  // of DialAnew's
  loop::Timer retry_;
  loop::Timer drop_spare_;
  bool overflowed_ = false;
  loop::Timer overflow_;
};

}  // namespace dtrain
