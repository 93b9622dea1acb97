// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "agent/spawn/job_id.h"
#include "spawner/protocol.h"

// The packets of spawner/protocol.h as an agent writes and reads them. Pure.
namespace dtrain::spawn {

// What names a job at dtrain-spawner.
struct SpawnAsk {
  std::string job_id;
  uint32_t attempt = 0;
  uint32_t lease_ms = 0, grace_ms = 0;
  std::string account;  // empty: a connection is passed
};
// INVALID_ARGUMENT: the spawner would not take it.
absl::StatusOr<std::string> EncodeSpawn(uint32_t tag, const SpawnAsk& ask);
std::string EncodeKill(uint32_t tag, const JobKey& key);
std::string EncodePlain(spawner::Type type, uint32_t tag);  // kAlive, kList

struct SpawnerRefused {
  spawner::Stage stage{};
  std::string words;  // escaped
};
struct SpawnerStarted {
  JobKey key;
  std::string account, link, cgroup;
};
struct SpawnerDone {};
struct SpawnerJob {
  JobKey key;
  spawner::State state{};
  uint32_t lease_ms = 0, grace_ms = 0;
  std::string link, cgroup;
};
struct SpawnerJobs {
  std::vector<SpawnerJob> jobs;
  bool more = false;
};
struct SpawnerEnded {
  JobKey key;
  int exit_code = -1;  // of the shepherd; -1: not known, or by a signal
  int signal = 0;
};
struct SpawnerUnkillable {
  JobKey key;
  std::vector<pid_t> pids;
};
using SpawnerWord = std::variant<SpawnerRefused, SpawnerStarted, SpawnerDone, SpawnerJobs,
                                 SpawnerEnded, SpawnerUnkillable>;
struct SpawnerPacket {
  uint32_t tag = 0;  // 0: an event, or an answer to what had no header
  SpawnerWord word;
};
// Takes nothing on trust but that root has written it: what is not exactly as spawner/protocol.h
// says is an INVALID_ARGUMENT.
absl::StatusOr<SpawnerPacket> DecodeSpawnerPacket(absl::string_view bytes, size_t fds);

}  // namespace dtrain::spawn
