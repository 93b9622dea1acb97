// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "spawner/protocol.h"

namespace dtrain::spawner {

using Time = std::chrono::steady_clock::time_point;
using Ms = std::chrono::milliseconds;

// PURE: the life of each job, with all its deadlines, and what an agent may ask for meanwhile.
//
// | state | until | then |
// | asking | the account is known | starting |
// |        | it is not, Kill, 20 s | refused, gone |
// | starting | the program runs | running |
// |          | it does not, Kill, 5 s | refused, killing |
// | running | Kill; the agent is silent for lease + grace + patience | killing |
// |         | nothing runs | killing, with nothing to kill |
// | killing | nothing runs and the cgroups are removed | Ended (of what ran), gone |
// |         | each 100 ms | killed or removed again; after `patience` Unkillable, once |
class SpawnerCore {
 public:
  static constexpr Ms kAskingTime{20'000}, kStartingTime{5'000}, kAgain{100}, kPatience{60'000};
  static constexpr size_t kMostJobs = 256, kMostOfUser = 32;      // not asking
  static constexpr size_t kMostBegun = 16, kMostBegunOfUser = 4;  // askers and starters
  static constexpr size_t kMostWaiting = 256, kMostWaitingOfUser = 32;

  struct Job {
    uint64_t number = 0;
    Name name;
    std::string who;  // for the caps, as long as the account is not known
    Ms lease{}, grace{};
    uint32_t tag = 0;
    State state = State::kAsking;
    Time since;
    bool begun = false;    // kAsking: its asker runs
    bool spawned = false;  // the agent knows that it ran
    bool empty = false;    // kKilling: nothing runs
    Time again;            // kKilling: when to try again
    bool told = false;     // kKilling: Unkillable
  };
  struct Action {
    enum Kind {
      kAsk,
      kStart,
      kDropAsker,
      kRefuse,
      kSpawned,
      kKill,
      kRemove,
      kUnkillable,
      kEnded,
      kGone
    };
    Kind kind;
    Job job;  // as it was
    Stage stage{};
    int error = 0;
    std::string words;
  };

  explicit SpawnerCore(Ms patience = kPatience) : patience_(patience) {}

  // Of a request that is by the rules. Returns why not; empty: answered by an action. An unknown
  // uid is UINT32_MAX.
  std::string OnSpawn(Time now, const SpawnRequest& request, uid_t uid, const std::string& who);
  bool OnKill(Time now, const Name& name);  // false: there is no such job
  void OnAlive(Time now) { heard_ = now; }
  // Nobody waits for what has not started.
  void OnDisconnected(Time now);
  // Whether the connection must end.
  bool OnBreach() { return ++breaches_ >= kMostBreaches; }
  void OnPermitted() { breaches_ = 0; }

  // Of a job's number; one that is gone, or in another state, is left alone.
  void OnAccount(Time now, uint64_t number, uid_t uid);
  void OnStarted(Time now, uint64_t number);
  void OnFailed(Time now, uint64_t number, Stage stage, int error, const std::string& words);
  void OnEmpty(Time now, uint64_t number);
  void OnRemoved(Time now, uint64_t number);
  // Of a spawner before this one.
  uint64_t Adopt(Time now, const Name& name, Ms lease, Ms grace);

  // Call when NextDeadline is reached, and after each event for what follows from it. When it comes
  // much too late we stood still, and nobody is blamed for silence.
  void OnTick(Time now);
  std::optional<Time> NextDeadline();
  std::vector<Action> TakeActions();
  const std::map<uint64_t, Job>& jobs() const { return jobs_; }

 private:
  using Jobs = std::map<uint64_t, Job>;
  Time Deadline(const Job& job) const;
  void Act(Action::Kind kind, const Job& job) { actions_.push_back({kind, job, {}, 0, {}}); }
  void Refuse(const Job& job, Stage stage, int error, const std::string& words);
  void Kill(Time now, Job& job);
  void BeginAskers();
  Job* Find(uint64_t number, State state);

  const Ms patience_;
  Jobs jobs_;
  std::vector<Action> actions_;
  uint64_t last_ = 0;
  Time heard_;
  std::optional<Time> expected_;
  int breaches_ = 0;
};

}  // namespace dtrain::spawner
