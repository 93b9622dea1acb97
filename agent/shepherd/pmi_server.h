// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "agent/shepherd/pmi1_requests.h"
#include "agent/shepherd/pmi2_requests.h"
#include "agent/shepherd/pmi_group.h"
#include "dtrain/v1/job.pb.h"

namespace dtrain::shepherd {

// The PMI server of one node's workers, each of which speaks PMI-1 or PMI-2, as its greeting says.
// Pure: messages in, messages out. Puts are kept here until all local ranks are in the fence
// (PMI-1's barrier), then travel up with it; gets are answered from what came down.
class PmiServer {
 public:
  using Reply = PmiReply;
  using Drop = PmiDrop;
  using Abort = PmiAbort;
  using Action = PmiAction;
  using Actions = PmiActions;

  explicit PmiServer(const v1::JobPart& part);
  PmiServer(const PmiServer&) = delete;
  PmiServer& operator=(const PmiServer&) = delete;

  // From a worker: a frame, with its header, if SpeaksFrames; otherwise a line without its newline.
  Actions OnMessage(uint32_t rank, absl::string_view message);
  // What its next message is.
  bool SpeaksFrames(uint32_t rank) const { return group_.client(rank).frames; }
  // What it is in, should it end now.
  v1::WorkerExit::World WorldOf(uint32_t rank) const { return group_.WorldOf(rank); }
  // Whether it has ever greeted.
  bool HasJoined(uint32_t rank) const { return group_.client(rank).joins > 0; }
  // The worker's process has ended: no fence waits for it.
  Actions OnGone(uint32_t rank) { return group_.OnGone(rank); }
  // All nodes are in. Ignored when it is not the one we wait for.
  Actions OnFenceRelease(const v1::FenceRelease& release) { return group_.OnFenceRelease(release); }

 private:
  PmiGroup group_;
  Pmi1Requests lines_;
  Pmi2Requests frames_;
};

}  // namespace dtrain::shepherd
