// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

// One communicator of the fake NCCL: ranks of one machine that share a memory file.
namespace fake_nccl {

struct Shared;

// What leads to the memory file: the process that made it and the descriptor there.
struct Path {
  int32_t pid;
  int32_t fd;
};

enum class Kind : int32_t { kAllReduce, kBroadcast, kReduce, kAllGather, kReduceScatter, kPairs };

struct Operation {
  Kind kind = Kind::kAllReduce;
  const char* input = nullptr;
  char* output = nullptr;
  size_t count = 0;
  int type = 0;
  int op = 0;
  int root = 0;
};

class Group {
 public:
  // The file of a new group; -1: none could be made.
  static int MakeFile();
  // nullptr: the file is gone.
  static std::unique_ptr<Group> Open(const Path& path, int rank, int size);
  ~Group();

  // Tells the others where this rank is and waits for all of them. False: two ranks with the same
  // GPU, or `stop` was set.
  bool Meet(uint64_t host, int device);
  // The ranks that give the same color, ordered by `key`, in a group of their own, which has met.
  // nullptr for a negative color, or when `stop` was set.
  std::unique_ptr<Group> Split(int color, int key, uint64_t host, int device);
  // Runs on a stream's thread; returns early when `stop` is set. Ranks that ask for different
  // things wait forever.
  void Run(const Operation& operation);

  int rank() const { return rank_; }
  int size() const { return size_; }
  std::atomic<bool>& stop() { return stop_; }

 private:
  Group(Shared* shared, int rank, int size) : shared_(shared), rank_(rank), size_(size) {}
  bool Barrier();
  bool Agree(const Operation& operation);
  char* Slot(int rank) const;
  // Gives `bytes` at `mine` to all; `take` is called with an offset, a length and the slots.
  template <typename Take>
  bool Exchange(const char* mine, size_t bytes, size_t element, Take take);

  Shared* const shared_;
  const int rank_;
  const int size_;
  std::atomic<bool> stop_{false};
};

size_t ElementSize(int type);

}  // namespace fake_nccl
