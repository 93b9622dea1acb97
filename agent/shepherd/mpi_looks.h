// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "agent/shepherd/launcher_line.h"
#include "agent/shepherd/mpi_watch.h"
#include "agent/shepherd/pmi_service.h"
#include "agent/shepherd/shepherd_core.h"
#include "agent/shepherd/workers.h"
#include "common/loop/loop.h"
#include "dtrain/v1/job.pb.h"

namespace dtrain::shepherd {

// Looks at the workers' processes now and then, by /proc, for MPI programs that cannot find the
// others, and tells the launcher. Loop thread.
class MpiLooks {
 public:
  // `core`: it looks while workers run.
  MpiLooks(loop::Loop& loop, const ShepherdCore& core, const Workers& workers,
           const PmiService& pmi, LauncherLine& launcher)
      : loop_(loop),
        core_(core),
        workers_(workers),
        pmi_(pmi),
        launcher_(launcher),
        next_look_(loop) {}

  // The workers run. Both must stay. Where no worker can be alone, nothing is looked for.
  void Begin(const v1::JobPart& part, const std::vector<std::string>& agent_env);
  // The rank is in the job's world.
  void OnJoined(uint32_t rank);
  // The rank has ended with 0: fails the job if that is no success. Before its end is told, which
  // could be the job's success.
  void Judge(uint32_t rank);
  // All have ended: names those that may have been alone.
  void End();

 private:
  void Plan(size_t look);
  void Exempt();
  void Look(size_t look, size_t next);
  bool WantsLook(const Worker& worker);
  void LookAt(const Worker& worker);

  loop::Loop& loop_;
  const ShepherdCore& core_;
  const Workers& workers_;
  const PmiService& pmi_;
  LauncherLine& launcher_;
  const v1::JobPart* part_ = nullptr;  // from Begin on
  const std::vector<std::string>* agent_env_ = nullptr;
  std::optional<MpiWatch> watch_;  // absent: nothing is to be found
  loop::Timer next_look_;
};

}  // namespace dtrain::shepherd
