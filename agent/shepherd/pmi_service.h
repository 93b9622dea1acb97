// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>

#include "agent/shepherd/aborts.h"
#include "agent/shepherd/launcher_line.h"
#include "agent/shepherd/pmi_connection.h"
#include "agent/shepherd/pmi_server.h"
#include "agent/shepherd/workers.h"
#include "common/loop/loop.h"
#include "dtrain/v1/job.pb.h"

namespace dtrain::shepherd {

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
