// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "agent/session/gpu_release.h"
#include "common/base/clock.h"
#include "dtrain/v1/agent.pb.h"
#include "dtrain/v1/shepherd.pb.h"

namespace dtrain::session {

// What this agent is, for the Hello it is greeted with.
struct Identity {
  uint32_t protocol = 0;
  std::string build;
  bool resumable = false;   // sessions outlive their streams, and shepherds their agent
  std::string notice = "";  // a warning that each launcher is given; empty: none
  // How long beyond its lease a job goes on whose launcher is connected and says nothing (ADR 14).
  Duration launcher_wait = Duration::zero();
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
};  // it did what no launcher of ours does
struct Resumed {
  v1::Hello hello;
};  // it is back on another stream; only when CanResume
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
struct StopAsked {
  std::string message;
};               // somebody other than the launcher ends the job: who, for the launcher's report
struct Tick {};  // a deadline may have passed

using Event =
    std::variant<Request, Heard, JobFrame, LauncherGone, LauncherBroke, Resumed, Reported,
                 ShepherdAnswers, JobEnded, ShepherdGone, LeftoversGone, GpusSeen, StopAsked, Tick>;

// ---- actions ------------------------------------------------------------------------------
// To the launcher, on channel 0: at once, or when it is back.
struct SendEvent {
  v1::SessionEvent event;
};
struct SendShepherd {
  v1::ShepherdRequest request;
};
struct OpenChannels {};  // with the launcher that has said Hello, again or for the first time
struct SendWelcome {};   // with the inventory, which takes I/O to read
// What the shepherd needs of us before it is given its part, which comes with the frames.
struct PrepareStart {};
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
// No process of the job is left: others may have what it had, but for GPUs that are not free.
struct GiveBack {
  GpuRelease gpus;
};
struct KillLeftovers {};  // the shepherd died or hangs: end it and what it left behind
struct LookAtGpus {};     // tell GpusSeen
struct End {
  absl::Status status;
};  // finish the stream; nothing comes after it

using Action =
    std::variant<SendEvent, SendShepherd, OpenChannels, SendWelcome, PrepareStart, RunProbe,
                 HoldPorts, ReserveShare, SendInventory, GiveBack, KillLeftovers, LookAtGpus, End>;

// One launcher's hold on this node, from its Hello to the last worker's end. Pure.
//
// Its one promise: workers live no longer than their launcher is heard from. The stream's end, or
// lease_ms of silence, stops them within the grace, and so does the shepherd's death; a shepherd
// that does not, or that says nothing to what it is asked, is killed. Time in which this
// process does not run is no silence, nor is a launcher on this machine silent whose stream stands:
// it is stopped or starved. The launcher hears of the last worker's end from the shepherd, and
// then, with Released, that its GPUs are free too, or have not become it in ten seconds.
class SessionCore {
 public:
  enum class State {
    kNew,        // no Hello yet
    kJoined,     // welcomed; probing, holding ports
    kRunning,    // the shepherd has its part
    kOrphaned,   // the launcher is gone, the shepherd is ending its workers, for so long as it may
    kReaping,    // the shepherd died; what it left behind is being ended
    kReleasing,  // no worker is left; its GPUs' memory may still be in use
    kFinished,   // no worker is left; logs may still be on their way
    kEnded,
  };

  SessionCore(Identity self, TimePoint now);
  // Of a job that an agent before us has started; its launcher is yet to come back. Tick it: what
  // its agent waited for is looked at again.
  SessionCore(Identity self, TimePoint now, const v1::Account& account, Reported reported);

  std::vector<Action> OnEvent(TimePoint now, const Event& event);
  TimePoint NextDeadline() const;
  State state() const { return state_; }
  const v1::Hello& hello() const { return hello_; }  // valid after kNew
  // The launcher whose session this is comes back, and there is one to come back to.
  bool CanResume(const v1::Hello& hello) const;
  // Whether what the launcher says to the shepherd is passed on.
  bool passes() const {
    return state_ == State::kJoined || state_ == State::kRunning || state_ == State::kReleasing ||
           state_ == State::kFinished;
  }
  // Of a connected launcher, before it is given up; zero: its silence does not count.
  Duration most_silence() const;
  // The launcher is not connected and may come back.
  bool away() const { return away_; }
  // Of the workers, as far as we wait for it: none before there are any.
  Duration grace() const;

 private:
  void CreditOwnPause(TimePoint now);
  bool counts_silence() const { return self_.resumable || !hello_.same_machine(); }
  TimePoint LeaseEnd() const;
  void OnRequest(const v1::SessionRequest& request);
  void OnHello(const v1::Hello& hello);
  void OnJobFrame(const JobFrame& frame);
  void OnReported(const Reported& reported);
  void OnJobEnded(const v1::Finished& finished);
  void OnResumed();
  void OnLauncherGone();
  void GiveUpLauncher();
  void AwaitAnswer(uint32_t grace_ms);
  void EndWorkers(uint32_t grace_ms);
  void OnShepherdGone(const std::string& why);
  void OnLeftoversGone();
  void OnGpusSeen(const GpusSeen& seen);
  void OnStopAsked(const std::string& message);
  void OnTick();
  void TellFinished();
  void Release();
  void EndRelease();
  void ReportHeld();
  void Warn(std::string message);
  void Finish(absl::Status status);
  void ToLauncher(v1::SessionEvent event);

  const Identity self_;
  State state_ = State::kNew;
  bool started_ = false;  // the shepherd was given its part
  TimePoint now_;
  TimePoint last_heard_;
  TimePoint last_beat_;
  v1::Hello hello_;
  bool launcher_gone_ = false;  // for good, while kReaping or kReleasing
  std::string shepherd_end_;    // how it ended, once kReaping
  GpuRelease gpus_;
  bool hurried_ = false;  // a KILL was asked for
  bool looking_ = false;  // a look at the GPUs is under way; while kReleasing, as what follows
  TimePoint look_at_ = kNever;
  TimePoint release_until_ = kNever;
  TimePoint orphan_until_ = kNever;  // while kOrphaned
  TimePoint asked_at_ = kNever;      // by the launcher, and its shepherd has not answered yet
  // Of a shepherd that was told to stop its workers, while kRunning.
  TimePoint answer_by_ = kNever;
  bool answered_ = true;
  uint32_t stop_grace_ms_ = 0;  // what it was told last
  v1::Finished finished_;       // the shepherd's, which may die before the launcher has it
  bool shepherd_gone_ = false;
  // Of sessions that outlive their stream.
  bool away_ = false;  // the launcher; it may come back
  TimePoint away_since_;
  std::vector<Action> actions_;
};

}  // namespace dtrain::session
