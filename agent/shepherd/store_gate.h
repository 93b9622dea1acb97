// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "agent/shepherd/helper.h"
#include "common/loop/loop.h"
#include "common/os/unique_fd.h"
#include "dtrain/v1/elastic.pb.h"
#include "dtrain/v1/job.pb.h"

namespace dtrain::shepherd {

// One of the servers at which ranks meet.
struct StoreKind {
  const char* role;  // of the helper
  const char* name;
  enum class Loss {
    kIfMissed,  // the job has failed when ranks come again
    kIfUsed,    // and that they cannot: the job has failed when it dies
    kAlways,    // used or not, as the launcher speaks with it
  };
  Loss loss;
  const char* advice;  // in a message of its death
};
inline constexpr StoreKind kHorovodStore = {"store", "the key-value server of the ranks",
                                            StoreKind::Loss::kIfMissed, ""};
inline constexpr StoreKind kElasticDoor = {
    "store", "the key-value server of an elastic job's ranks", StoreKind::Loss::kAlways, ""};
inline constexpr StoreKind kTorchStore = {"tcpstore", "PyTorch's store (--agent-store)",
                                          StoreKind::Loss::kIfUsed,
                                          " Without --agent-store, rank 0 serves the store itself"};

// A port of rank 0's node at which ranks meet, and behind it a helper: from the first client on, or
// from the beginning where the launcher has something to say to it. Loop thread.
class StoreGate {
 public:
  struct Hooks {
    // Ranks want the server and cannot have it: what was tried, why it failed, what to do.
    absl::AnyInvocable<void(std::string why, bool ended)> failed;
    absl::AnyInvocable<void(std::string text)> warn;
    absl::AnyInvocable<void(v1::ElasticUp up)> elastic;
  };
  // `held`: bound, as the launcher has asked for it. `program`: of the helper. `part` must stay.
  static absl::StatusOr<std::unique_ptr<StoreGate>> Open(loop::Loop& loop, std::string program,
                                                         const StoreKind& kind,
                                                         const v1::JobPart& part, os::UniqueFd held,
                                                         Hooks hooks);
  Helper& helper() { return helper_; }
  // To the door of an elastic job, which runs.
  void Send(const v1::ElasticDown& down);
  // Ranks have been there.
  bool used() const { return used_; }

 private:
  StoreGate(loop::Loop& loop, std::string program, const StoreKind& kind, const v1::JobPart& part,
            os::UniqueFd listener, Hooks hooks);
  absl::StatusOr<Helper::Hooks::Beginning> Begin() const;
  void OnFrame(absl::string_view frame);
  void OnEnded(const std::string& how);

  const StoreKind& kind_;
  const v1::JobPart& part_;
  Hooks hooks_;
  bool used_ = false;
  std::string lost_;  // what became of the server that ranks have used
  int starts_ = 0;
  Helper helper_;
};

}  // namespace dtrain::shepherd
