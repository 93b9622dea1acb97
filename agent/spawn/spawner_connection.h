// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/spawn/spawner_wire.h"
#include "common/base/clock.h"
#include "common/loop/loop.h"
#include "common/os/unique_fd.h"

namespace dtrain::spawn {

// One connection to dtrain-spawner: requests, their answers, and the sign of life that keeps its
// jobs. It ends when the spawner does, and when that breaks the protocol or does not answer: then
// each open request fails, and last `on_closed` is called. Loop thread.
class SpawnerConnection {
 public:
  struct Answer {
    SpawnerWord word;  // of kList: all jobs
    std::vector<os::UniqueFd> fds;
  };
  using OnAnswer = absl::AnyInvocable<void(absl::StatusOr<Answer>)>;
  using OnEvent = absl::AnyInvocable<void(const SpawnerWord&)>;  // SpawnerEnded, SpawnerUnkillable
  using OnClosed = absl::AnyInvocable<void(std::string why)>;    // may destroy this

  // The spawner does nothing but answer.
  static constexpr Duration kAnswerLimit = std::chrono::seconds(10);

  // Of the spawner's agent.sock. PERMISSION_DENIED: somebody else than root listens there.
  // `answer_limit`: of all requests but Spawn.
  static absl::StatusOr<std::unique_ptr<SpawnerConnection>> Open(
      loop::Loop& loop, const std::string& path, OnEvent on_event, OnClosed on_closed,
      Duration answer_limit = kAnswerLimit);
  ~SpawnerConnection();
  SpawnerConnection(const SpawnerConnection&) = delete;
  SpawnerConnection& operator=(const SpawnerConnection&) = delete;

  // `connection`: the launcher's, when the request has no account. INVALID_ARGUMENT: it was not
  // sent. Answers come later, never from inside.
  absl::Status Spawn(const SpawnAsk& ask, int connection, OnAnswer done);
  void Kill(const JobKey& key, OnAnswer done);
  void List(OnAnswer done);

 private:
  struct Call {
    spawner::Type type{};
    OnAnswer done;
    std::unique_ptr<loop::Timer> limit;
    std::vector<SpawnerJob> jobs;  // so far
  };
  SpawnerConnection(loop::Loop& loop, os::UniqueFd socket, OnEvent on_event, OnClosed on_closed,
                    Duration answer_limit);
  void Ask(spawner::Type type, uint32_t tag, const std::string& packet, int fd, Duration limit,
           OnAnswer done);
  void Await();
  void Receive();
  bool ReceiveOne();  // false: nothing is there now, or this has ended or is destroyed
  void OnPacket(SpawnerPacket packet, std::vector<os::UniqueFd> fds);
  void StayAlive();
  // Later, so that no caller of ours finds itself destroyed.
  void End(std::string why);

  loop::Loop& loop_;
  const os::UniqueFd socket_;
  OnEvent on_event_;
  OnClosed on_closed_;
  const Duration answer_limit_;
  loop::FdWatch watch_;
  loop::Timer alive_pause_;
  std::map<uint32_t, Call> calls_;  // by tag
  uint32_t last_tag_ = 0;
  std::string ended_why_;  // empty: it has not
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dtrain::spawn
