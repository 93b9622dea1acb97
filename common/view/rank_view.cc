// SPDX-License-Identifier: Apache-2.0
#include "common/view/rank_view.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>

#include "common/base/worker_exit.h"
#include "common/view/collective_view.h"

namespace dtrain::view {
namespace {

// In one collective, until a reader hears of it.
constexpr std::chrono::nanoseconds kLongInside = std::chrono::seconds(5);

bool IsLongInside(const v1::RankProgress* progress) {
  return progress != nullptr && progress->inside() &&
         progress->inside_nanos() > kLongInside.count();
}

}  // namespace

RankLetter LetterOf(const RankFacts& rank) {
  if (rank.exit != nullptr) {
    if (rank.exit->told_to_stop()) return RankLetter::kStopped;
    return HasFailed(*rank.exit) ? RankLetter::kFailed : RankLetter::kDone;
  }
  if (rank.lost || rank.ended) return RankLetter::kLost;
  if (rank.pid == 0) return RankLetter::kWaiting;
  if (rank.halted) return RankLetter::kHalted;
  return IsLongInside(rank.progress) ? RankLetter::kInside : RankLetter::kRunning;
}

int ExitOf(const RankFacts& rank) {
  if (rank.exit == nullptr) return 0;
  return rank.exit->signal() != 0 ? -rank.exit->signal() : rank.exit->exit_code();
}

nlohmann::ordered_json RankView(const RankFacts& rank) {
  nlohmann::ordered_json json = {{"rank", rank.rank}, {"host", std::string(rank.host)}};
  json["state"] = rank.ended ? "ended" : rank.pid == 0 ? "waiting" : "running";
  if (rank.pid != 0) json["pid"] = rank.pid;
  if (rank.exit != nullptr) AddExit(*rank.exit, json);
  if (rank.progress != nullptr && (rank.progress->operations() > 0 || rank.progress->inside())) {
    json["collectives"] = CollectiveView(*rank.progress);
  }
  return json;
}

void AddExit(const v1::WorkerExit& exit, nlohmann::ordered_json& json) {
  if (exit.signal() != 0) {
    json["signal"] = exit.signal();
  } else {
    json["exit_code"] = exit.exit_code();
  }
}

void RankCounts::Ended(const v1::WorkerExit& exit) {
  ++ended;
  failed += HasFailed(exit) ? 1 : 0;
}

nlohmann::ordered_json RankCounts::View() const {
  return {{"waiting", waiting}, {"running", running}, {"ended", ended}, {"failed", failed}};
}

}  // namespace dtrain::view
