// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_nccl/nccl/operation.h"

#include <algorithm>
#include <cstring>

namespace fake_nccl {
namespace {

using Slots = std::vector<const char*>;

// Gives `bytes` at `mine` to all; `take` is called with an offset, a length and the slots.
template <typename Take>
bool Exchange(World& world, const char* mine, size_t bytes, const Waiter& stop, Take take) {
  Slots slots;
  for (int r = 0; r < world.size(); ++r) slots.push_back(world.slot(r));
  for (size_t at = 0; at < bytes; at += kSlot) {
    const size_t n = std::min(kSlot, bytes - at);
    if (mine != nullptr) std::memcpy(world.slot(world.rank()), mine + at, n);
    if (!world.MeetOnDevice(stop)) return false;
    take(at, n, slots);
    if (!world.MeetOnDevice(stop)) return false;
  }
  return true;
}

// How far a transfer has got.
struct Progress {
  Transfer transfer;
  size_t done = 0;
};

// Moves what can be moved now. Whether anything was.
bool Advance(World& world, Progress& p) {
  const Transfer& t = p.transfer;
  const bool send = t.from != nullptr;
  const int from = send ? world.rank() : t.peer, to = send ? t.peer : world.rank();
  Mailbox& box = world.shared().mailboxes[from][to];
  if (box.full.load() == (send ? 1U : 0U)) return false;
  char* memory = world.mailbox(from, to);
  if (send) {
    const size_t n = std::min(kMailbox, t.bytes - p.done);
    std::memcpy(memory, t.from + p.done, n);
    box.bytes = static_cast<uint32_t>(n);
    p.done += n;
    box.full.store(1);
    return true;
  }
  const size_t n = std::min<size_t>(box.bytes, t.bytes - p.done);
  std::memcpy(t.to + p.done, memory, n);
  p.done += n;
  box.full.store(0);
  return true;
}

// Real kernels send while others' data already arrives.
void SpoilInPlace(const World& world, const std::vector<Transfer>& transfers) {
  for (const Transfer& in : transfers) {
    for (const Transfer& out : transfers) {
      if (in.to == nullptr || out.from == nullptr || in.peer == world.rank()) continue;
      if (in.to < out.from + out.bytes && out.from < in.to + in.bytes) {
        std::memset(in.to, 0xdb, in.bytes);
      }
    }
  }
}

}  // namespace

Extent ExtentOf(const Operation& o, int rank, int size) {
  const size_t bytes = o.count * ElementSize(o.type);
  const size_t all = bytes * static_cast<size_t>(size);
  switch (o.kind) {
    case Kind::kBroadcast:
      return {rank == o.root ? bytes : 0, bytes};
    case Kind::kReduce:
      return {bytes, rank == o.root ? bytes : 0};
    case Kind::kAllGather:
      return {bytes, all};
    case Kind::kReduceScatter:
      return {all, bytes};
    default:
      return {bytes, bytes};
  }
}

void RunCollective(World& world, const Operation& o, const Waiter& stop) {
  const size_t element = ElementSize(o.type);
  const size_t bytes = o.count * element;
  const auto me = static_cast<size_t>(world.rank());
  const bool root = world.rank() == o.root;
  const auto reduce = [&](size_t at, size_t n, const Slots& slots) {
    Reduce(o.output + at, slots, n / element, o.type, o.op);
  };
  const auto drop = [](size_t, size_t, const Slots&) {};
  switch (o.kind) {
    case Kind::kAllReduce:
      Exchange(world, o.input, bytes, stop, reduce);
      return;
    case Kind::kReduce:
      if (root) {
        Exchange(world, o.input, bytes, stop, reduce);
      } else {
        Exchange(world, o.input, bytes, stop, drop);
      }
      return;
    case Kind::kBroadcast:
      Exchange(world, root ? o.input : nullptr, bytes, stop,
               [&](size_t at, size_t n, const Slots& slots) {
                 std::memcpy(o.output + at, slots[static_cast<size_t>(o.root)], n);
               });
      return;
    case Kind::kAllGather:
      Exchange(world, o.input, bytes, stop, [&](size_t at, size_t n, const Slots& slots) {
        for (size_t r = 0; r < slots.size(); ++r) {
          std::memcpy(o.output + r * bytes + at, slots[r], n);
        }
      });
      return;
    case Kind::kReduceScatter: {
      // In place, the output is one of the blocks that still have to be sent.
      std::vector<char> result(bytes);
      for (size_t b = 0; b < static_cast<size_t>(world.size()); ++b) {
        const auto take = [&](size_t at, size_t n, const Slots& slots) {
          if (b == me) Reduce(result.data() + at, slots, n / element, o.type, o.op);
        };
        if (!Exchange(world, o.input + b * bytes, bytes, stop, take)) return;
      }
      if (bytes > 0) std::memcpy(o.output, result.data(), bytes);
      return;
    }
  }
}

void RunTransfers(World& world, const std::vector<Transfer>& transfers, const Waiter& stop) {
  std::vector<Progress> open;
  for (const Transfer& t : transfers) {
    if (t.bytes > 0) open.push_back({t, 0});
  }
  for (Pause pause; !open.empty();) {
    bool moved = false;
    // The first of each peer and direction is the one in progress.
    std::vector<std::pair<int, bool>> seen;
    for (Progress& p : open) {
      const std::pair<int, bool> key = {p.transfer.peer, p.transfer.from != nullptr};
      if (std::find(seen.begin(), seen.end(), key) != seen.end()) continue;
      seen.push_back(key);
      moved = Advance(world, p) || moved;
    }
    std::erase_if(open, [](const Progress& p) { return p.done >= p.transfer.bytes; });
    if (moved) {
      pause = Pause();
    } else if (stop()) {
      return;
    } else {
      pause();
    }
  }
  SpoilInPlace(world, transfers);
}

}  // namespace fake_nccl
