// SPDX-License-Identifier: Apache-2.0
// Jobs of random lives, beside a model of plain variables; written in batches, cut by crashes and
// made short by snapshots at random.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "gtest/gtest.h"
#include "launcher/journal/records.h"
#include "launcher/journal/replay.h"
#include "tests/unit/journal/job_story.h"

namespace dtrain::journal {
namespace {

// What a launcher has done, and may do next.
struct Life {
  uint64_t generation = 0;
  int attempt = -1;
  bool runs = false;
  bool restarting = false;
  bool again = false;
  bool told = false;
  std::optional<int> verdict;
  int hooks = 0;
  bool hook_over = false;
  bool over = false;
  std::map<uint32_t, int> exits;
  std::set<uint32_t> finished;
  std::map<uint32_t, uint64_t> safe;

  void Check(const JournalState& state) const {
    ASSERT_EQ(state.launcher().generation(), generation);
    ASSERT_EQ(state.has_attempt(), attempt >= 0);
    if (attempt >= 0) {
      ASSERT_EQ(state.attempt().attempt(), static_cast<uint32_t>(attempt));
    }
    ASSERT_EQ(state.has_runs(), runs);
    ASSERT_EQ(state.has_stop() || state.has_time_limit(), told);
    ASSERT_EQ(state.has_verdict(), verdict.has_value());
    if (verdict) {
      ASSERT_EQ(state.verdict().exit_code(), *verdict);
    }
    ASSERT_EQ(static_cast<int>(state.hooks_begun()), hooks);
    ASSERT_EQ(state.phase() == JournalState::PHASE_RESTARTING, restarting);
    ASSERT_EQ(state.phase() == JournalState::PHASE_ENDED, over);
    ASSERT_EQ(static_cast<size_t>(state.exits_size()), exits.size());
    int i = 0;
    for (const auto& [rank, code] : exits) {
      ASSERT_EQ(state.exits(i).rank(), rank);
      ASSERT_EQ(state.exits(i++).exit_code(), code);
    }
    ASSERT_EQ(static_cast<size_t>(state.nodes_size()), finished.size());
    i = 0;
    for (const uint32_t node : finished) ASSERT_EQ(state.nodes(i++).node(), node);
    ASSERT_EQ(static_cast<size_t>(state.logs_safe_size()), safe.size());
    i = 0;
    for (const auto& [rank, offset] : safe) {
      ASSERT_EQ(state.logs_safe(i).rank(), rank);
      ASSERT_EQ(state.logs_safe(i++).offset(), offset);
    }
  }
};

class ReplayModel : public testing::Test {
 protected:
  uint32_t Pick(uint32_t below) {
    return std::uniform_int_distribution<uint32_t>(0, below - 1)(random_);
  }

  // Something that may happen now; the life goes on by it.
  JournalRecord Next(Life& life) {
    if (life.generation == 0 || Pick(40) == 0) return Generation(life.generation += 1 + Pick(3));
    if (life.verdict) return NextOfTheEnd(life);
    if (Pick(300) == 0) {
      life.told = true;
      return Pick(2) == 0 ? Stop() : Limit();
    }
    if (life.told && Pick(10) == 0) {
      life.restarting = false;
      life.verdict = 130;
      return Verdict(130);
    }
    const auto attempt = static_cast<uint32_t>(life.attempt);
    if (life.attempt < 0 || (life.restarting && Pick(3) == 0)) {
      if (!life.told) return NextAttempt(life);
      if (life.attempt < 0) return Stop();
    }
    if (!life.runs && !life.restarting && (life.told || Pick(4) != 0)) {
      life.runs = true;
      return Runs(attempt);
    }
    if (!life.told && !life.restarting && Pick(30) == 0) {
      life.restarting = true;
      life.again = !life.runs && Pick(2) == 0;
      return Restart(attempt, {}, life.again);
    }
    const uint32_t rank = Pick(16);
    if (Pick(2) == 0) return Safe(attempt, rank, life.safe[rank] += Pick(1000));
    const uint32_t node = rank / 4;
    if (Pick(4) == 0) {
      life.finished.insert(node);
      return Finished(attempt, node);
    }
    const int code = static_cast<int>(Pick(3));
    life.exits.emplace(rank, code);
    return Exit(attempt, node, rank, code);
  }
  JournalRecord NextAttempt(Life& life) {
    if (!life.again) ++life.attempt;
    life.again = false;
    life.runs = life.restarting = false;
    life.exits.clear();
    life.finished.clear();
    life.safe.clear();
    return Begins(static_cast<uint32_t>(life.attempt), life.generation, {"a", "b", "c", "d"}, 16);
  }
  JournalRecord NextOfTheEnd(Life& life) {
    const uint32_t what = Pick(4);
    if (what == 0 && !life.hook_over) {
      ++life.hooks;
      return HookBegins();
    }
    if (what == 1 && life.hooks > 0 && !life.hook_over) {
      life.hook_over = true;
      return HookEnds();
    }
    if (what > 1) return Stop();
    life.over = true;
    return Ended();
  }

  void Live(uint32_t seed) {
    SCOPED_TRACE(testing::Message() << "DTRAIN_SEED=" << seed);
    random_.seed(seed);
    std::string file = Written({AcceptedRecord()});
    std::string batch;
    JournalState state = StateAfter({AcceptedRecord()});
    JournalState synced = state;
    Life life;
    for (int i = 0; i < 400 && !life.over; ++i) {
      const JournalRecord record = Next(life);
      ASSERT_NO_FATAL_FAILURE(ExpectApplies(record, state));
      ASSERT_NO_FATAL_FAILURE(life.Check(state));
      ASSERT_TRUE(AppendRecord(record, batch.empty(), &batch).ok());
      if (Pick(50) == 0) {
        file = Written({Snapshot(state)}, false);
      } else if (Pick(3) == 0) {
        file += batch;
      } else {
        if (Pick(10) == 0) CrashAmid(file, batch, synced);
        continue;
      }
      batch.clear();
      synced = state;
      const auto read = Read(file);
      ASSERT_TRUE(read.ok()) << read.status();
      ASSERT_TRUE(Same(read->state, state));
    }
  }
  // Of the batch anything may be on disk; what was synced counts.
  void CrashAmid(const std::string& file, std::string batch, const JournalState& synced) {
    const size_t from = Pick(static_cast<uint32_t>(batch.size()));
    if (Pick(2) == 0) {
      batch.resize(from);
    } else {
      const size_t hole = std::min<size_t>(batch.size() - from, 1 + Pick(100));
      batch.replace(from, hole, std::string(hole, '\0'));
    }
    const auto read = Read(file + batch);
    ASSERT_TRUE(read.ok()) << read.status();
    ASSERT_GE(read->good_bytes, file.size());
    if (read->good_bytes == file.size()) {
      ASSERT_TRUE(Same(read->state, synced));
    }
  }

  std::mt19937 random_;
};

TEST_F(ReplayModel, RandomLives) {
  uint32_t seed = 0;
  const char* given = getenv("DTRAIN_SEED");
  if (given != nullptr && absl::SimpleAtoi(given, &seed)) return Live(seed);
  for (seed = 1; seed <= 100 && !HasFatalFailure(); ++seed) Live(seed);
}

}  // namespace
}  // namespace dtrain::journal
