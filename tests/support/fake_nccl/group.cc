// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_nccl/group.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>

namespace fake_nccl {
namespace {

constexpr int kMostRanks = 64;
constexpr size_t kSlot = size_t{1} << 18;

struct Entry {
  uint64_t host;
  int32_t device;
  int32_t color, key;
  Path path;
  int32_t kind, type, op, root;
  uint64_t count;
};

float FromHalf(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = (bits >> 10) & 31, fraction = bits & 0x3ff;
  if (exponent == 0) {
    const float tiny = static_cast<float>(fraction) / 16777216.0f;
    return sign != 0 ? -tiny : tiny;
  }
  const uint32_t wide = sign | ((exponent == 31 ? 255 : exponent + 112) << 23) | (fraction << 13);
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

// Truncates; the tests use numbers that need no rounding.
uint16_t ToHalf(float value) {
  uint32_t wide;
  std::memcpy(&wide, &value, sizeof(wide));
  const auto sign = static_cast<uint16_t>((wide >> 16) & 0x8000);
  const int exponent = static_cast<int>((wide >> 23) & 255) - 112;
  if (exponent <= 0) return sign;
  if (exponent >= 31) return static_cast<uint16_t>(sign | 0x7c00);
  return static_cast<uint16_t>(sign | (exponent << 10) | ((wide >> 13) & 0x3ff));
}

float FromBrain(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

uint16_t ToBrain(float value) {
  uint32_t wide;
  std::memcpy(&wide, &value, sizeof(wide));
  return static_cast<uint16_t>(wide >> 16);
}

template <typename T>
T Combine(T a, T b, int op) {
  if (op == 2) return std::max(a, b);
  if (op == 3) return std::min(a, b);
  if constexpr (std::is_integral_v<T>) {
    // Wraps around, as on the GPU.
    const auto x = static_cast<std::make_unsigned_t<T>>(a), y = static_cast<decltype(x)>(b);
    return static_cast<T>(op == 1 ? x * y : x + y);
  }
  return op == 1 ? a * b : a + b;
}

template <typename T, typename Wide, typename From, typename To>
void ReduceAs(char* out, const std::vector<const char*>& slots, size_t count, int op, From from,
              To to) {
  for (size_t i = 0; i < count; ++i) {
    Wide all{};
    for (size_t r = 0; r < slots.size(); ++r) {
      T next;
      std::memcpy(&next, slots[r] + i * sizeof(T), sizeof(T));
      all = r == 0 ? from(next) : Combine<Wide>(all, from(next), op);
    }
    if (op == 4) all /= static_cast<Wide>(slots.size());
    const T result = to(all);
    std::memcpy(out + i * sizeof(T), &result, sizeof(T));
  }
}

template <typename T>
void ReducePlain(char* out, const std::vector<const char*>& slots, size_t count, int op) {
  const auto same = [](T value) { return value; };
  ReduceAs<T, T>(out, slots, count, op, same, same);
}

void Reduce(char* out, const std::vector<const char*>& slots, size_t count, int type, int op) {
  if (type == 2) ReducePlain<int32_t>(out, slots, count, op);
  if (type == 4) ReducePlain<int64_t>(out, slots, count, op);
  if (type == 6) ReduceAs<uint16_t, float>(out, slots, count, op, FromHalf, ToHalf);
  if (type == 7) ReducePlain<float>(out, slots, count, op);
  if (type == 8) ReducePlain<double>(out, slots, count, op);
  if (type == 9) ReduceAs<uint16_t, float>(out, slots, count, op, FromBrain, ToBrain);
}

}  // namespace

struct Shared {
  std::atomic<uint32_t> arrived;
  std::atomic<uint32_t> round;
  Entry entries[kMostRanks];
};

namespace {
constexpr size_t kHeader = (sizeof(Shared) + 4095) / 4096 * 4096;
constexpr size_t kWhole = kHeader + kMostRanks * kSlot;
}  // namespace

size_t ElementSize(int type) {
  return type == 4 || type == 8 ? 8 : type == 6 || type == 9 ? 2 : type <= 1 ? 1 : 4;
}

int Group::MakeFile() {
  const int fd = memfd_create("fake_nccl", MFD_CLOEXEC);
  if (fd >= 0 && ftruncate(fd, kWhole) != 0) return -1;
  return fd;
}

std::unique_ptr<Group> Group::Open(const Path& path, int rank, int size) {
  if (size > kMostRanks) return nullptr;
  const std::string name = "/proc/" + std::to_string(path.pid) + "/fd/" + std::to_string(path.fd);
  const int fd = open(name.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return nullptr;
  void* memory = mmap(nullptr, kWhole, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (memory == MAP_FAILED) return nullptr;
  return std::unique_ptr<Group>(new Group(static_cast<Shared*>(memory), rank, size));
}

Group::~Group() { munmap(shared_, kWhole); }

char* Group::Slot(int rank) const {
  return reinterpret_cast<char*>(shared_) + kHeader + static_cast<size_t>(rank) * kSlot;
}

bool Group::Barrier() {
  const uint32_t round = shared_->round.load();
  if (shared_->arrived.fetch_add(1) + 1 == static_cast<uint32_t>(size_)) {
    shared_->arrived.store(0);
    shared_->round.fetch_add(1);
    return true;
  }
  while (shared_->round.load() == round) {
    if (stop_.load()) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  return true;
}

bool Group::Meet(uint64_t host, int device) {
  Entry& mine = shared_->entries[rank_];
  mine.host = host;
  mine.device = device;
  if (!Barrier()) return false;
  bool fine = true;
  for (int a = 0; a < size_; ++a) {
    for (int b = 0; b < a; ++b) {
      const Entry &one = shared_->entries[a], &other = shared_->entries[b];
      fine = fine && (one.host != other.host || one.device != other.device);
    }
  }
  return Barrier() && fine;
}

std::unique_ptr<Group> Group::Split(int color, int key, uint64_t host, int device) {
  Entry& mine = shared_->entries[rank_];
  mine.color = color;
  mine.key = key;
  if (!Barrier()) return nullptr;
  int rank = 0, size = 0;
  const Entry* first = &mine;
  for (int r = 0; r < size_; ++r) {
    const Entry& other = shared_->entries[r];
    if (other.color != color) continue;
    ++size;
    const bool before = std::tie(other.key, r) < std::tie(mine.key, rank_);
    rank += before ? 1 : 0;
    if (std::tie(other.key, r) <
        std::make_tuple(first->key, static_cast<int>(first - shared_->entries))) {
      first = &other;
    }
  }
  int file = -1;
  if (rank == 0) {
    file = MakeFile();
    mine.path = {getpid(), file};
  }
  std::unique_ptr<Group> part;
  if (Barrier() && color >= 0) part = Open(first->path, rank, size);
  if (part != nullptr && !part->Meet(host, device)) part.reset();
  const bool all = Barrier();
  if (file >= 0) close(file);
  return all ? std::move(part) : nullptr;
}

bool Group::Agree(const Operation& operation) {
  Entry& mine = shared_->entries[rank_];
  mine.kind = static_cast<int32_t>(operation.kind);
  mine.type = operation.type;
  mine.op = operation.op;
  mine.root = operation.root;
  mine.count = operation.count;
  if (!Barrier()) return false;
  for (int r = 0; r < size_; ++r) {
    const Entry& other = shared_->entries[r];
    if (other.kind == mine.kind && other.type == mine.type && other.op == mine.op &&
        other.root == mine.root && other.count == mine.count) {
      continue;
    }
    while (!stop_.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return false;
  }
  return Barrier();
}

template <typename Take>
bool Group::Exchange(const char* mine, size_t bytes, size_t element, Take take) {
  const size_t chunk = kSlot / element * element;
  std::vector<const char*> slots;
  for (int r = 0; r < size_; ++r) slots.push_back(Slot(r));
  for (size_t at = 0; at < bytes; at += chunk) {
    const size_t n = std::min(chunk, bytes - at);
    if (mine != nullptr) std::memcpy(Slot(rank_), mine + at, n);
    if (!Barrier()) return false;
    take(at, n, slots);
    if (!Barrier()) return false;
  }
  return true;
}

void Group::Run(const Operation& o) {
  if (!Agree(o)) return;
  using Slots = std::vector<const char*>;
  const size_t element = ElementSize(o.type);
  const size_t bytes = o.count * element;
  const auto me = static_cast<size_t>(rank_);
  const bool root = rank_ == o.root;
  const auto reduce_to = [&](char* out) {
    return [&o, element, out](size_t at, size_t n, const Slots& slots) {
      if (out != nullptr) Reduce(out + at, slots, n / element, o.type, o.op);
    };
  };
  switch (o.kind) {
    case Kind::kAllReduce:
      Exchange(o.input, bytes, element, reduce_to(o.output));
      return;
    case Kind::kReduce:
      Exchange(o.input, bytes, element, reduce_to(root ? o.output : nullptr));
      return;
    case Kind::kBroadcast:
      Exchange(root ? o.input : nullptr, bytes, element,
               [&](size_t at, size_t n, const Slots& slots) {
                 std::memcpy(o.output + at, slots[static_cast<size_t>(o.root)], n);
               });
      return;
    case Kind::kAllGather:
      Exchange(o.input, bytes, element, [&](size_t at, size_t n, const Slots& slots) {
        for (size_t r = 0; r < slots.size(); ++r) {
          std::memcpy(o.output + r * bytes + at, slots[r], n);
        }
      });
      return;
    case Kind::kReduceScatter:
    case Kind::kPairs:
      // A block at a time; only its owner takes it.
      for (size_t b = 0; b < static_cast<size_t>(size_); ++b) {
        const auto take = [&](size_t at, size_t n, const Slots& slots) {
          if (b != me) return;
          if (o.kind == Kind::kReduceScatter) return reduce_to(o.output)(at, n, slots);
          for (size_t r = 0; r < slots.size(); ++r) {
            std::memcpy(o.output + r * bytes + at, slots[r], n);
          }
        };
        if (!Exchange(o.input + b * bytes, bytes, element, take)) return;
      }
      return;
  }
}

}  // namespace fake_nccl
