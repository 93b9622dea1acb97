// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "common/base/ids.h"
#include "common/link/kept_bytes.h"
#include "common/loop/loop.h"
#include "dtrain/v1/agent.pb.h"
#include "launcher/hosts/hostfile.h"
#include "launcher/job/job_core.h"
#include "launcher/node_link.h"
#include "launcher/transport/redials.h"
#include "launcher/transport/ways.h"

namespace dtrain {

// The links to all nodes of a launch. A message to many of them exists once. Loop thread.
class NodeLinks {
 public:
  struct Handlers {
    absl::AnyInvocable<void(job::Event)> on_event;  // of a connection: NodePhase ... NodeClosed
    absl::AnyInvocable<void(NodeId, v1::SessionEvent)> on_agent;
    absl::AnyInvocable<void(NodeId, v1::JobEvent)> on_shepherd;
    // See NodeLink.
    absl::AnyInvocable<void(NodeId, v1::LogChunk)> on_logs;
    absl::AnyInvocable<void(NodeId, absl::Status)> on_logs_end;
    absl::AnyInvocable<void(NodeId)> on_logs_cut;
    // One more of the connections that Disconnect ends has ended.
    absl::AnyInvocable<void()> on_left;
    // An agent says that another launcher has the job.
    absl::AnyInvocable<void(std::string)> on_superseded;
  };

  NodeLinks(loop::Loop& loop, transport::Ways& ways, Handlers handlers);
  ~NodeLinks();
  NodeLinks(const NodeLinks&) = delete;
  NodeLinks& operator=(const NodeLinks&) = delete;

  // Once. NodeId is the index. `kept`: the job is on disk, as NodeLink::KeepUntilSafe says.
  void Connect(const std::vector<hosts::HostEntry>& entries, bool kept);
  // The same for an attempt that is taken over, by the index: the boot id of the machine, "" when
  // it is not known; none: it has no part in it.
  void TakeOver(const std::vector<hosts::HostEntry>& entries, const v1::Hello& hello,
                const std::vector<std::optional<std::string>>& boot_ids);
  void SetSafe(NodeId id, const v1::LogPosition& position);
  // How much of each output was handed over, in no order.
  std::vector<v1::LogPosition> Taken() const;
  void Send(const job::ToAgent& message);
  void Send(const job::ToAgents& message);
  void Send(const job::ToShepherd& message);
  void Send(const job::ToShepherds& message);
  void Send(const job::Beat& beat);
  // Input for a worker, and the like: what the job does not decide.
  void SendTo(NodeId id, const v1::JobRequest& request) { SendTo(id, SharedRequest(request)); }
  void SendTo(NodeId id, const v1::SessionRequest& request) { SendTo(id, SharedRequest(request)); }
  void OpenLogs(NodeId id, const std::string& job_id, uint32_t attempt);
  void NextLogs(NodeId id);
  // After NodeClosed of one that had no session: connects once more, after a pause.
  void ConnectAgain(const job::ConnectAgain& again);
  void DialAnew(NodeId id);
  // After a Goodbye the agent closes the stream when its session has ended: then, and not before,
  // nothing of ours is left there.
  void Disconnect(NodeId id);
  // Connections that are being ended.
  size_t leaving() const { return leaving_; }
  // The agents are gone, or go when their stream does.
  void Clear() { nodes_.clear(); }

 private:
  struct Node {
    std::unique_ptr<NodeLink> link;  // null: not connected, or no more
    bool said_goodbye = false;
    bool disconnecting = false;
    loop::Timer goodbye_timer;
    hosts::HostEntry entry;
    loop::Timer again;                // before it is tried again
    transport::Redials::Place place;  // of a try that is not the first
    explicit Node(loop::Loop& loop) : goodbye_timer(loop), again(loop) {}
  };

  void Connect(NodeId id, const hosts::HostEntry& entry,
               std::optional<NodeLink::Takeover> takeover);
  void OnClosed(NodeId id, absl::Status why);
  void SendTo(NodeId id, const SharedRequest& request);
  const SharedRequest& CommonBytes(const std::shared_ptr<const v1::JobPart>& common);

  loop::Loop& loop_;
  transport::Ways& ways_;
  Handlers handlers_;
  transport::Redials redials_;
  link::KeptBytes kept_{link::kKeptPerLaunch};
  // The last that several starts have in common.
  std::shared_ptr<const v1::JobPart> common_;
  std::optional<SharedRequest> common_bytes_;
  const SharedBeat beat_;
  bool keeps_ = false;  // the job is on disk
  size_t leaving_ = 0;
  std::vector<std::unique_ptr<Node>> nodes_;
};

}  // namespace dtrain
