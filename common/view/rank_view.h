// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "absl/strings/string_view.h"
#include "common/view/columns.h"
#include "dtrain/v1/job.pb.h"

// A rank and the counts of ranks as every answer tells them, whoever knows of them: the running
// launcher, an agent, or the folder of a job that has ended. docs/api.md describes the answers.
// Pure.
namespace dtrain::view {

struct RankFacts {
  uint32_t rank = 0;
  absl::string_view host = "";
  uint32_t pid = 0;     // 0: its process has not started
  bool lost = false;    // with its node, before it ended
  bool halted = false;  // its process does not run
  bool ended = false;
  const v1::WorkerExit* exit = nullptr;        // null: it has not ended, or nobody knows how
  const v1::RankProgress* progress = nullptr;  // null: it has not used libdtrain
};

RankLetter LetterOf(const RankFacts& rank);
// "rank", "host" and "state"; "pid", the exit and "collectives" if they are known.
nlohmann::ordered_json RankView(const RankFacts& rank);
// Its exit code, or minus the signal; 0 while it runs.
int ExitOf(const RankFacts& rank);
// "signal" or "exit_code".
void AddExit(const v1::WorkerExit& exit, nlohmann::ordered_json& json);

struct RankCounts {
  size_t waiting = 0;
  size_t running = 0;
  size_t ended = 0;
  size_t failed = 0;  // of those that have ended

  void Ended(const v1::WorkerExit& exit);
  nlohmann::ordered_json View() const;
};

}  // namespace dtrain::view
