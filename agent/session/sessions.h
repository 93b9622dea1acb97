// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "agent/auth/identity.h"
#include "agent/session/adoption.h"
#include "agent/session/inquiries.h"
#include "agent/session/reservations.h"
#include "agent/session/roster.h"
#include "agent/session/session.h"
#include "agent/session/visitors.h"
#include "agent/spawn/job_id.h"
#include "agent/spawn/spawner.h"
#include "common/loop/loop.h"
#include "common/rpc/frame_guard.h"

namespace dtrain::session {

// The sessions of one agent: one on a byte stream, any number in a resident one. It leads each
// stream to its session, and launchers that come back to theirs; at its start it takes over the
// jobs that an agent before it has left running. Loop thread.
class Sessions {
 public:
  // `state_directory`: of a resident agent, exists; empty: sessions end with their stream.
  // `on_session_ended` is called, on the loop, when a session is gone and its last word is sent.
  Sessions(loop::Loop& loop, Identity self, std::string state_directory, spawn::Spawner& spawner,
           Readers readers, loop::Task on_session_ended);
  ~Sessions();

  // Without it no job outlives an agent whose sessions end with their streams.
  void SetSuccessor(Successor successor) { successor_ = std::move(successor); }
  // Takes over what an agent before us has left, and calls `done` when that is decided for all.
  // Fails, and has touched none of it, when a record cannot be read now: the job may be well.
  void AdoptAll(absl::AnyInvocable<void(absl::Status)> done);

  // `peer`: the caller; what it is not allowed to do is refused. `connected`: its unix connection,
  // which proves to a spawner who it is; empty over TLS.
  void Accept(std::shared_ptr<Session::Stream> stream, const auth::Identity& peer,
              std::optional<spawn::Connected> connected = {}) {
    visitors_.Accept(std::move(stream), peer, std::move(connected));
  }
  // `beside`: the session's stream on the same connection, or null.
  void AcceptLogs(const v1::LogsRequest& request, std::shared_ptr<LogRelay::Writer> writer,
                  const auth::Identity& peer, const Session::Stream* beside = nullptr);
  // A launcher of such an owner is not connected and may come back.
  bool Awaits(absl::FunctionRef<bool(const Owner&)> whose) const;
  // A launch has begun here, and is to come to its start.
  bool starting() const;
  // The agent is about to end: gives back what spares hold, and tells their launchers. Whether
  // there were any.
  bool LeaveSpares();
  // This node is to go away, for that reason: all jobs end here, and their launchers are told at
  // once. From now on a launch is refused. Twice changes nothing.
  void LeaveNode(const std::string& why);
  // Sessions of which the launcher is yet to hear how they ended.
  size_t farewells() const { return farewells_; }
  bool busy() const { return !roster_.all().empty() || !openings_.empty() || !visitors_.empty(); }

  // For callers that are no launchers.
  Inquiries& inquiries() { return inquiries_; }

 private:
  // A launch whose shepherd does not run yet. Its launcher waits for the answer to its Hello.
  struct Opening {
    std::shared_ptr<Session::Stream> stream;
    v1::Hello hello;
    auth::Identity peer;
    Owner owner;
    std::unique_ptr<spawn::Processes> processes;
    bool closed = false;
    std::vector<loop::Task> then = {};  // who came for its session
  };
  using Openings = std::list<Opening>;
  // A launcher whose job is not ours.
  struct Stranger {
    std::shared_ptr<Session::Stream> stream;
    spawn::JobKey job;
  };

  void Open(std::shared_ptr<Session::Stream> stream, const auth::Identity& peer,
            std::optional<spawn::Connected> connected, const v1::Hello& hello);
  void OnShepherdStarted(Openings::iterator opening, absl::Status started);
  void RefuseShepherd(Session::Stream& stream, const auth::Identity& peer, const v1::Hello& hello,
                      const absl::Status& why);
  void EndEarlier(const v1::Hello& hello, const Owner& owner);
  void RemoveEnded();
  // Takes over a job that another agent has left here since we started, and calls `then` when that
  // is decided. False: no such job.
  bool AdoptLate(const spawn::JobKey& key, absl::AnyInvocable<void(absl::Status)> then);
  void BeginAdoption(absl::AnyInvocable<void(absl::Status)> done);
  void EndAdoption(const absl::Status& how);
  // `looked`: for a job that was left to us.
  void Resume(std::shared_ptr<Session::Stream> stream, const auth::Identity& peer,
              const v1::Hello& hello, bool looked = false);
  // Tells a launcher whether its job, which is not ours, runs here under another agent. The looks
  // that this needs take a tenth of the loop's time at most: one answers all who asked before it.
  void AskForShepherd(std::shared_ptr<Session::Stream> stream, spawn::JobKey job);
  void LookForShepherds();
  // How many of this user's launches have a process here and no job: they have not come to their
  // start, or are over, and their shepherds have yet to end.
  size_t Starting(uid_t uid) const;
  // How many sessions of this user's there are.
  size_t Present(uid_t uid) const;
  std::shared_ptr<const bool> PresenceOf(uid_t uid);
  Surroundings Around();
  Surroundings AroundJobOf(uid_t uid);
  void OnAdopted(Adoption::Job job);
  void LookAtGpus(const v1::GpuUse& use, const std::set<uint32_t>& killed);

  loop::Loop& loop_;
  const Identity self_;
  const std::string state_directory_;
  spawn::Spawner& spawner_;
  Readers readers_;
  Reservations reservations_;
  loop::Task on_session_ended_;
  std::optional<Successor> successor_;
  Roster roster_;
  Inquiries inquiries_;
  Visitors visitors_;
  Openings openings_;
  std::vector<Stranger> strangers_;  // until the next look
  TimePoint next_look_{};            // none before
  TimePoint next_removal_{};         // of folders: none before, either
  loop::Timer look_;
  size_t farewells_ = 0;
  std::string leaves_;  // why this node does; empty: it does not
  std::map<uid_t, std::shared_ptr<const bool>>
      presences_;  // each held by the user's shepherds, too
  std::map<uid_t, std::shared_ptr<rpc::SharedLimit>> reports_;  // each held by sessions, too
  std::map<uid_t, std::shared_ptr<RelayRoom>> relays_;          // likewise
  std::unique_ptr<Adoption> adoption_;                          // until all is decided
  std::vector<absl::AnyInvocable<void(absl::Status)>> after_adoption_;
  // Jobs whose shepherds could not be taken over: why, for their launchers.
  std::map<spawn::JobKey, std::string> lost_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dtrain::session
