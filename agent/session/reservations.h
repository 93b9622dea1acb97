// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <list>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/session/gpu_release.h"
#include "agent/spawn/processes.h"
#include "dtrain/v1/agent.pb.h"
#include "dtrain/v1/node.pb.h"
#include "dtrain/v1/state.pb.h"

namespace dtrain::session {

// What of a node one job has for itself.
struct Share {
  std::set<std::string> gpus;  // by uuid
  std::set<int> cores;
};

// Of one node that a job may name: more than any has, of GPUs also in parts (MIG).
inline constexpr int kMostGpus = 1024, kMostCores = 8192;

// INVALID_ARGUMENT: no list of cores, or more of either.
absl::StatusOr<Share> ShareOf(const v1::Reserve& reserve);

// The books of one agent: who has which GPUs and cores, and which GPUs are not given out because
// what used them last still holds their memory. Pure.
class Reservations {
 public:
  // Names a session for as long as it lives.
  using Key = const void*;

  // `holder`: "job dtrain-1f of alice". Takes the place of what the session had.
  // FAILED_PRECONDITION with what is held, and by whom, when not all of it is free; the session
  // has what it had then.
  absl::Status Reserve(Key session, const std::string& holder, Share share);
  void Release(Key session);

  // Counts the ports that a session holds, in the place of those that it had, until ReleasePorts.
  // RESOURCE_EXHAUSTED: the jobs of its user, or of all users, would hold too many. Each port takes
  // a descriptor, and with few free ports left the kernel searches long for one. A few are any
  // user's, however many others hold.
  static constexpr size_t kMostPortsOfUser = 2048, kMostPorts = 8192, kPortsOfAnyUser = 64;
  absl::Status ClaimPorts(Key session, const spawn::Owner& owner, size_t count);
  void ReleasePorts(Key session) { ports_.erase(session); }

  // A job has ended, and its GPUs are not free. Those that are not stay out of use until a look at
  // them finds them free.
  void Withhold(const std::string& holder, const GpuRelease& gpus);
  // The same, of an agent before this one, and for the one after it.
  void Withhold(const std::vector<v1::GpuUse>& uses);
  std::vector<v1::GpuUse> SaveWithheld() const;
  size_t withheld() const { return withheld_.size(); }  // jobs after which some GPU is

  // Writes into an inventory, just read, what others than the session have.
  void Mark(Key session, v1::Inventory& inventory);

 private:
  struct Holding {
    std::string holder;
    Share share;
  };
  struct Withheld {
    std::string holder;
    GpuRelease gpus;
  };
  struct Ports {
    uid_t uid = 0;
    size_t count = 0;
  };
  std::map<Key, Holding> holdings_;
  // Whose they are. So a job costs what it names itself, not what others have named.
  std::map<std::string, Key> gpus_;
  std::map<int, Key> cores_;
  std::map<Key, Ports> ports_;
  std::list<Withheld> withheld_;
};

}  // namespace dtrain::session
