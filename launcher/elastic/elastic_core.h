// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "launcher/elastic/events.h"
#include "launcher/elastic/failures.h"
#include "launcher/elastic/forming.h"
#include "launcher/elastic/host_book.h"
#include "launcher/elastic/notices.h"
#include "launcher/elastic/options.h"
#include "launcher/elastic/out.h"
#include "launcher/elastic/runs.h"

// One attempt of an elastic Horovod job (ADR 45). Pure: events in, actions out. Its ranks live
// through rounds: a round has fixed ranks, and the next one begins when each of them has failed,
// ended or asked for its place in the next. JobCore decides about the workers of one host.
namespace dtrain::elastic {

class ElasticCore {
 public:
  enum class State {
    kGather,  // waits for hosts, or for runs that make room for others
    kForm,    // who is in the next round is decided; waits until all are at their doors
    kOpen,    // the round runs
    kEnd,     // waits for the end of all runs
    kOver,
  };

  ElasticCore(ElasticOptions options, HostBook& book, TimePoint now);

  std::vector<ElasticAction> OnEvent(TimePoint now, const ElasticEvent& event);
  TimePoint NextDeadline() const;

  State state() const { return state_; }
  uint64_t round() const { return round_; }    // the last one that was opened, from 1 on
  uint32_t resets() const { return resets_; }  // decisions for another round
  const RunTable& runs() const { return runs_; }

 private:
  void On(const HostsFound& found);
  void On(const DoorWaits& waits);
  void On(const SeatAsked& asked);
  void On(const WorkerEnded& ended);
  void On(const RunOver& over);
  void On(const Registered& registered);
  void On(const NoticeDone& done);
  void On(const StopAsked& asked);
  void On(const StoppedThere& stopped);
  void On(const Tick&);

  enum class Fault {
    kWorker,
    kHost,
    kLate,      // its workers have not come
    kWithdrew,  // a worker has left without having failed: nobody's
  };

  void OnHosts(HostChange change);
  void Succeed(RunId id, uint32_t local_rank);
  void Lose(Failure failure, Fault fault, TimePoint dead_at);
  void Settle();
  void MayDecide();
  void TryForm();
  void MayOpen();
  void Compare();
  void LeaveLateOut();
  void End(Ending ending);
  void EndForWant(const std::string& text);

  const ElasticOptions options_;
  HostBook& book_;
  const TimePoint begin_;
  TimePoint now_;
  State state_ = State::kGather;
  uint64_t round_ = 0;
  uint32_t resets_ = 0;
  RunTable runs_;
  Failures failures_;
  Notices notices_;
  Out out_;
  Forming forming_;
  TimePoint join_by_;           // kGather; counts from the job's begin or the last round's end
  TimePoint come_by_ = kNever;  // kForm
  bool listed_ = false;         // this attempt has seen hosts
  bool stuck_said_ = false;     // in this round
  bool unheard_said_ = false;   // that rank 0 cannot be told
};

}  // namespace dtrain::elastic
