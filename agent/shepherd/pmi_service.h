// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "agent/shepherd/aborts.h"
#include "agent/shepherd/launcher_line.h"
#include "agent/shepherd/pmi1_requests.h"
#include "agent/shepherd/pmi2_requests.h"
#include "agent/shepherd/pmi_group.h"
#include "agent/shepherd/workers.h"
#include "common/loop/loop.h"
#include "common/os/unique_fd.h"
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

// Our end of one worker's PMI socket: lines or frames in and out, with bounded buffers. Loop
// thread.
class PmiConnection {
 public:
  // A line without its newline, or a frame with its header. True: frames come from here on.
  using OnMessage = absl::AnyInvocable<bool(absl::string_view message)>;

  // What is longer than any line of PMI, or has no length of a frame in front, is handed over cut,
  // which its parser refuses.
  PmiConnection(loop::Loop& loop, os::UniqueFd socket, OnMessage on_message);
  PmiConnection(const PmiConnection&) = delete;
  PmiConnection& operator=(const PmiConnection&) = delete;

  void Send(absl::string_view message);
  // Hands over what the worker sent before it ended.
  void ReadRest();
  // May be called from inside on_message.
  void Close();

 private:
  void Arm();
  bool Read();  // false when there was nothing
  // Takes the next whole message out of what has come.
  std::optional<std::string> Next();
  void Write();
  loop::Loop& loop_;
  os::UniqueFd socket_;
  std::unique_ptr<loop::FdWatch> watch_;
  OnMessage on_message_;
  std::string in_;
  std::string out_;
  bool frames_ = false;
  bool reading_ = false;
  bool writing_ = false;
  bool taking_ = false;
};

// Speaks PMI with the workers, over the socket that each was given. Loop thread.
class PmiService {
 public:
  PmiService(loop::Loop& loop, LauncherLine& launcher, Workers& workers, Aborts& aborts)
      : loop_(loop), launcher_(launcher), workers_(workers), aborts_(aborts) {}
  PmiService(const PmiService&) = delete;
  PmiService& operator=(const PmiService&) = delete;

  // All workers have been started. Until then nothing of the below has an effect.
  void Serve(const v1::JobPart& part);
  void OnFenceRelease(const v1::FenceRelease& release);
  // The last fences that this node has entered, to a launcher that has not heard of them.
  void SayAgain();
  // Hears what the rank, whose process has ended, said last.
  void HearLast(uint32_t rank);
  // No fence waits for the rank any more.
  void OnGone(uint32_t rank);
  v1::WorkerExit::World WorldOf(uint32_t rank) const {
    return server_ ? server_->WorldOf(rank) : v1::WorkerExit::WORLD_UNSPECIFIED;
  }
  // Whether the rank has ever greeted.
  bool HasJoined(uint32_t rank) const { return server_ && server_->HasJoined(rank); }

 private:
  void Carry(PmiServer::Actions actions);

  loop::Loop& loop_;
  LauncherLine& launcher_;
  Workers& workers_;
  Aborts& aborts_;
  std::optional<PmiServer> server_;
  std::map<uint32_t, std::unique_ptr<PmiConnection>> connections_;  // by rank
  std::deque<v1::JobEvent> entered_;
};

}  // namespace dtrain::shepherd
