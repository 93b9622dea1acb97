// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

// The ranks of one communicator: processes or threads of one machine that share a memory file.
namespace fake_nccl {

constexpr int kMostRanks = 64;
constexpr size_t kSlot = size_t{1} << 18;     // of a rank, for collectives
constexpr size_t kMailbox = size_t{1} << 14;  // from one rank to another

// What leads to the memory file: the process that made it and the descriptor there.
struct Path {
  int32_t pid = 0;
  int32_t fd = -1;
};

// Waits a little longer each time.
class Pause {
 public:
  void operator()() {
    if (++round_ < 50) return std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(round_ < 500 ? 50 : 500));
  }

 private:
  int round_ = 0;
};

// What a rank tells the others about itself.
struct Entry {
  int32_t pid;
  int32_t version;
  uint64_t host;
  char bus[16];
  unsigned char uuid[16];
  int32_t color, key;
  Path path;
  std::atomic<uint32_t> met;         // 1: its connections exist
  std::atomic<uint32_t> closed;      // 1: they do not any more
  std::atomic<uint32_t> connected;   // kinds of collectives that it has begun to use, a bit each
  std::atomic<uint32_t> registered;  // collectives with registered buffers that it has begun
  std::atomic<uint32_t> use;         // how it uses them in the last one
};

struct Mailbox {
  std::atomic<uint32_t> full;
  uint32_t bytes;
};

struct Meeting {
  std::atomic<uint32_t> arrived;
  std::atomic<uint32_t> round;
};

struct Shared {
  Meeting host, device;
  std::atomic<uint8_t> pairs[kMostRanks][kMostRanks][2];  // by sender, receiver and which of them
  Entry entries[kMostRanks];
  Mailbox mailboxes[kMostRanks][kMostRanks];
};

// Whether a wait has become pointless.
using Waiter = std::function<bool()>;

class World {
 public:
  static int MakeFile();  // -1: none could be made
  // nullptr: the file is gone.
  static std::shared_ptr<World> Open(const Path& path, int rank, int size);
  ~World();

  // Returns when all have come; false when `stop` was sooner.
  bool Meet(Meeting& meeting, const Waiter& stop);
  bool MeetOnHost(const Waiter& stop) { return Meet(shared_->host, stop); }
  bool MeetOnDevice(const Waiter& stop) { return Meet(shared_->device, stop); }

  Entry& entry(int rank) { return shared_->entries[rank]; }
  Entry& mine() { return entry(rank_); }
  Shared& shared() { return *shared_; }
  char* slot(int rank) const;
  char* mailbox(int from, int to) const;
  // Whether the process of this rank still runs.
  bool Lives(int rank);

  int rank() const { return rank_; }
  int size() const { return size_; }

 private:
  World(Shared* shared, int rank, int size) : shared_(shared), rank_(rank), size_(size) {}

  Shared* const shared_;
  const int rank_;
  const int size_;
};

uint64_t HostHash();

}  // namespace fake_nccl
