// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/spawn/job_id.h"
#include "agent/spawn/own_processes.h"
#include "agent/spawn/spawner.h"
#include "common/loop/loop.h"
#include "common/os/account.h"

namespace dtrain::spawn {

// Runs what we run, whatever has become of its file.
inline constexpr char kOwnProgram[] = "/proc/self/exe";

// Starts shepherds as children of this process: as ourselves or, where we are root, as whoever it
// is. Each has a cgroup of its own where we may make one.
class OwnSpawner final : public Spawner {
 public:
  // Who the user of this uid is, who is connected.
  using FindAccount = absl::AnyInvocable<absl::StatusOr<os::Account>(uid_t)>;

  // `program`: run as `<program> shepherd`.
  OwnSpawner(loop::Loop& loop, std::string program, FindAccount find_account);

  absl::StatusOr<std::unique_ptr<Processes>> Spawn(Order order) override;
  Found Adopt(Trace trace) override;
  void Sweep() override;

 private:
  std::string MakeCgroup(const os::Account& account, const JobKey& key);

  const OwnProcesses::Surroundings around_;
  const std::string program_;
  FindAccount find_account_;
  loop::Timer sweep_;
};

// For an agent of one job, which starts its shepherd before it knows that job, and before gRPC has
// started threads.
class OneSpawner final : public Spawner {
 public:
  static absl::StatusOr<std::unique_ptr<OneSpawner>> Start(loop::Loop& loop,
                                                           const std::string& program);
  // Has none, for an agent that only answers questions.
  static std::unique_ptr<OneSpawner> Empty();
  // FAILED_PRECONDITION: it was handed out, or there is none.
  absl::StatusOr<std::unique_ptr<Processes>> Spawn(Order order) override;
  Found Adopt(Trace trace) override;
  void Sweep() override {}
  // Kills it, unless it was handed out: it has no workers.
  void KillUnused();

 private:
  OneSpawner() = default;
  std::unique_ptr<OwnProcesses> one_;
};

}  // namespace dtrain::spawn
