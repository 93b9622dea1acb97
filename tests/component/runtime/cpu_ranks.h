// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/cpu/communicator.h"
#include "tests/component/runtime/ranks.h"

namespace dtrain::runtime {

// A table in memory that the ranks of a test share, made before they are forked.
class SharedTable {
 public:
  static constexpr size_t kEntry = 16384;

  explicit SharedTable(int n) : n_(n) {
    const size_t bytes = sizeof(std::atomic<uint64_t>) + static_cast<size_t>(n) * 2 * kEntry;
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    arrived_ = new (at) std::atomic<uint64_t>(0);
    entries_ = static_cast<char*>(at) + sizeof(*arrived_);
  }

  // False when the others have not come at the deadline.
  bool Meet(Deadline deadline) {
    const auto n = static_cast<uint64_t>(n_);
    const uint64_t target = (arrived_->fetch_add(1) / n + 1) * n;
    while (arrived_->load() < target) {
      if (std::chrono::steady_clock::now() >= deadline) return false;
      poll(nullptr, 0, 1);  // waits for the event that the others' counting is
    }
    return true;
  }

  char* entry(int rank, uint64_t round) {
    return entries_ + (static_cast<size_t>(rank) * 2 + round % 2) * kEntry;
  }
  int size() const { return n_; }

 private:
  const int n_;
  std::atomic<uint64_t>* arrived_;
  char* entries_;
};

class TableBootstrap : public FullBootstrap {
 public:
  TableBootstrap(SharedTable& table, int rank) : table_(table), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return table_.size(); }
  Result<std::vector<std::string>> Exchange(const std::string& mine, Deadline deadline) override {
    EXPECT_LT(mine.size(), SharedTable::kEntry - 8);
    char* entry = table_.entry(rank_, round_);
    const uint64_t length = mine.size();
    std::memcpy(entry, &length, sizeof(length));
    std::memcpy(entry + sizeof(length), mine.data(), mine.size());
    if (!table_.Meet(deadline)) return Error{DTRAIN_ERROR_TIMEOUT, "the others have not come"};
    std::vector<std::string> all;
    for (int r = 0; r < size(); ++r) {
      const char* theirs = table_.entry(r, round_);
      uint64_t n = 0;
      std::memcpy(&n, theirs, sizeof(n));
      all.emplace_back(theirs + sizeof(n), n);
    }
    ++round_;
    return all;
  }

 private:
  SharedTable& table_;
  const int rank_;
  uint64_t round_ = 0;
};

// How the ranks of a test are spread: `node[r]` is the pretended node of rank r.
struct CpuSetup {
  std::vector<int> node;
  bool direct_reads = true;
  std::chrono::seconds deadline{100};

  static CpuSetup Nodes(std::vector<int> node) { return {std::move(node)}; }
  static CpuSetup OneNode(int n) { return {std::vector<int>(static_cast<size_t>(n), 0)}; }
  int size() const { return static_cast<int>(node.size()); }
};

inline CpuOptions OptionsOf(const CpuSetup& setup) {
  CpuOptions options;
  options.node_of_rank = setup.node;
  options.address = "127.0.0.1";
  options.direct_reads = setup.direct_reads;
  return options;
}

inline Deadline In(std::chrono::milliseconds time) {
  return std::chrono::steady_clock::now() + time;
}

// Runs `body` on every rank, a process each, with a communicator; all of them meet again after it,
// unless the body says that this is not to be.
inline std::vector<int> RunCpuRanks(const CpuSetup& setup,
                                    const std::function<void(CpuCommunicator&)>& body,
                                    bool meet_at_end = true, std::map<int, int> ends = {}) {
  SharedTable table(setup.size());
  RanksOptions options = Ending(std::move(ends));
  options.deadline = setup.deadline;
  return Ranks::Run(
      setup.size(),
      [&](int rank) {
        TableBootstrap bootstrap(table, rank);
        auto made =
            CpuCommunicator::Make(bootstrap, OptionsOf(setup), In(std::chrono::seconds(30)));
        ASSERT_TRUE(made.ok()) << made.error().message;
        body(**made);
        if (meet_at_end && !testing::Test::HasFailure()) {
          EXPECT_TRUE(table.Meet(In(std::chrono::seconds(60))));
        }
      },
      options);
}

// The same for several setups at once, where each has to wait for a time limit. `body` gets the
// number of its setup; `ends` are by process: those of a setup follow those of the one before.
inline std::vector<int> RunCpuRanksAtOnce(
    const std::vector<CpuSetup>& setups,
    const std::function<void(size_t setup, CpuCommunicator&)>& body, std::map<int, int> ends) {
  std::vector<SharedTable> tables;
  std::vector<std::pair<size_t, int>> places;  // of each process: its setup and its rank there
  for (size_t setup = 0; setup < setups.size(); ++setup) {
    const int size = setups[setup].size();
    tables.emplace_back(size);
    for (int rank = 0; rank < size; ++rank) places.emplace_back(setup, rank);
  }
  RanksOptions options = Ending(std::move(ends));
  options.deadline = CpuSetup().deadline;
  return Ranks::Run(
      static_cast<int>(places.size()),
      [&](int process) {
        const auto& [setup, rank] = places[static_cast<size_t>(process)];
        TableBootstrap bootstrap(tables[setup], rank);
        auto made = CpuCommunicator::Make(bootstrap, OptionsOf(setups[setup]),
                                          In(std::chrono::seconds(30)));
        ASSERT_TRUE(made.ok()) << made.error().message;
        body(setup, **made);
      },
      options);
}

constexpr std::chrono::milliseconds kLong = std::chrono::seconds(60);

// Runs one collective that must succeed.
inline void MustRun(CpuCommunicator& communicator, Collective what) {
  static uint64_t number = 0;
  what.number = number++;
  Spent spent;
  const MaybeError error = communicator.Run(what, kLong, spent);
  ASSERT_FALSE(error) << "rank " << communicator.rank() << ": " << Describe(what) << ": "
                      << error->message;
}

}  // namespace dtrain::runtime
