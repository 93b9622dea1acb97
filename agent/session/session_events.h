// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "agent/session/gpu_release.h"
#include "common/base/clock.h"
#include "dtrain/v1/agent.pb.h"
#include "dtrain/v1/shepherd.pb.h"

// What comes into SessionCore, and what it asks for.
namespace dtrain::session {

// What this agent is, for the Hello it is greeted with.
struct Identity {
  uint32_t protocol = 0;
  std::string build;
  bool resumable = false;   // sessions outlive their streams, and shepherds their agent
  std::string notice = "";  // a warning that each launcher is given; empty: none
  // How long beyond its lease a job goes on whose launcher is connected and says nothing (ADR 14).
  Duration launcher_wait = Duration::zero();
  // No other agent of this node has the job that a launcher comes back to, as far as its bridge
  // sees.
  bool last_asked = false;
};

// ---- events -------------------------------------------------------------------------------
struct Request {
  v1::SessionRequest request;
};
struct Heard {};  // some frame of the launcher, without a message
// One of its frames for the shepherd. The first that is kept begins the job here.
struct JobFrame {
  bool kept = false;
  bool asks = false;  // it has something in it, which a shepherd that lives answers within a second
};
struct LauncherGone {};  // its stream ended
struct LauncherBroke {
  absl::Status why;
};  // it broke a rule of the protocol
struct Resumed {
  v1::Hello hello;
};  // it is back on another stream; only when CanResume
// Another launcher has the job now, which knows nothing of what was said; only when CanResume and
// Outranks.
struct TakenOver {
  v1::Hello hello;
};
// By the shepherd: which GPUs and processes are its workers'.
struct Reported {
  std::set<std::string> gpus;  // by uuid; where nothing is reserved, as that is what counts
  std::set<uint32_t> workers;  // pids
};
struct ShepherdAnswers {};  // it lives: a frame or a word of it has come
struct JobEnded {
  v1::Finished finished;
};  // so it says: no worker is left
struct ShepherdGone {
  std::string why;
};                        // its socket closed or its process ended
struct LeftoversGone {};  // what KillLeftovers asked for is done, as far as it can be
struct GpusSeen {
  std::vector<v1::Gpu> gpus;
  std::string error;           // why there may be more
  std::vector<uint32_t> ours;  // pids of this job's processes that still live
};                             // with the Welcome, and for LookAtGpus
// Somebody other than the launcher ends the job here.
struct StopAsked {
  std::string message;  // who, for the launcher's report
  bool leaves = false;  // this node is to go away: the job may go on without it
};
// PrepareToBeLeft is done, or why it cannot be.
struct ReadyToBeLeft {
  std::string refused;
  v1::LogPositions sent;  // of Kept
};
struct Tick {};  // a deadline may have passed

using Event = std::variant<Request, Heard, JobFrame, LauncherGone, LauncherBroke, Resumed,
                           TakenOver, Reported, ShepherdAnswers, JobEnded, ShepherdGone,
                           LeftoversGone, GpusSeen, StopAsked, ReadyToBeLeft, Tick>;

// ---- actions ------------------------------------------------------------------------------
// To the launcher, on channel 0: at once, or when it is back.
struct SendEvent {
  v1::SessionEvent event;
};
struct SendShepherd {
  v1::ShepherdRequest request;
};
// With the launcher that has said Hello, again or for the first time. `anew`: it has taken the
// place of another.
struct OpenChannels {
  bool anew = false;
};
// A Welcome, and after it what was said to launchers before and still counts.
struct TellAgain {};
struct SendWelcome {};  // with the inventory, which takes I/O to read
// What the shepherd needs of us before it is given its part, which comes with the frames.
struct PrepareStart {};
// What an agent needs that has the job after us, whose sessions end with their streams. Answered by
// ReadyToBeLeft.
struct PrepareToBeLeft {};
struct RunProbe {
  v1::ProbeRequest request;
};
struct HoldPorts {
  uint32_t count = 0;
  uint32_t listening = 0;  // the last of them
};
struct ReserveShare {
  v1::Reserve reserve;
};                        // answer with Reserved
struct SendInventory {};  // as it is now
// No process of the job is left: its share is free for others, except GPUs that are still in use.
struct GiveBack {
  GpuRelease gpus;
};
struct KillLeftovers {};   // the shepherd died or hangs: end it and what it left behind
struct SkipContainers {};  // of KillLeftovers: they have had their time, go on with the rest
struct LookAtGpus {};      // tell GpusSeen
struct End {
  absl::Status status;
};  // finish the stream; nothing comes after it

using Action =
    std::variant<SendEvent, SendShepherd, OpenChannels, SendWelcome, TellAgain, PrepareStart,
                 PrepareToBeLeft, RunProbe, HoldPorts, ReserveShare, SendInventory, GiveBack,
                 KillLeftovers, SkipContainers, LookAtGpus, End>;

}  // namespace dtrain::session
