// SPDX-License-Identifier: Apache-2.0
#include "runtime/shm/arena.h"

#include <sys/mman.h>
#include <sys/random.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <utility>

namespace dtrain::runtime {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kSmallest = size_t{1} << 30;

size_t RoundUp(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

Arena::Arena(SharedMemory memory) : memory_(std::move(memory)) {
  // The first page is not handed out: it holds the cookie.
  free_[kPage] = memory_.size() - kPage;
  uint64_t cookie = 0;
  if (getrandom(&cookie, sizeof(cookie), 0) != sizeof(cookie)) cookie = 1;
  std::memcpy(memory_.data(), &cookie, sizeof(cookie));
}

uint64_t Arena::CookieOf(const SharedMemory& arena) {
  uint64_t cookie = 0;
  std::memcpy(&cookie, arena.data(), sizeof(cookie));
  return cookie;
}

uint64_t Arena::cookie() const { return CookieOf(memory_); }

Result<std::unique_ptr<Arena>> Arena::Make(size_t bytes) {
  // Limits of the address space (ulimit -v) may forbid the usual size.
  for (;; bytes /= 2) {
    auto memory = SharedMemory::Create("dtrain-arena", bytes);
    if (memory.ok()) return std::unique_ptr<Arena>(new Arena(std::move(*memory)));
    if (bytes / 2 < kSmallest) return memory.error();
  }
}

void* Arena::Alloc(size_t bytes) {
  if (bytes > memory_.size()) return nullptr;
  const size_t length = RoundUp(std::max(bytes, size_t{1}), kPage);
  const size_t unit = length >= kHugePage ? kHugePage : kPage;
  const auto base = reinterpret_cast<uintptr_t>(memory_.data());
  for (auto [at, room] : free_) {
    const size_t start = RoundUp(base + at, unit) - base;
    if (start + length > at + room) continue;
    free_.erase(at);
    if (start > at) free_[at] = start - at;
    if (start + length < at + room) free_[start + length] = at + room - start - length;
    used_[start] = length;
    if (unit == kHugePage) madvise(memory_.data() + start, length, MADV_HUGEPAGE);
    return memory_.data() + start;
  }
  return nullptr;
}

bool Arena::Free(void* memory) {
  const auto offset = Find(memory, 0);
  const auto found = offset ? used_.find(*offset) : used_.end();
  if (found == used_.end()) return false;
  auto [at, length] = *found;
  used_.erase(found);
  memory_.Discard(at, length);
  const auto next = free_.lower_bound(at);
  if (next != free_.end() && next->first == at + length) {
    length += next->second;
    free_.erase(next);
  }
  const auto after = free_.lower_bound(at);
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == at) {
      before->second += length;
      return true;
    }
  }
  free_[at] = length;
  return true;
}

std::optional<size_t> Arena::Find(const void* address, size_t bytes) const {
  const auto at = reinterpret_cast<uintptr_t>(address);
  const auto base = reinterpret_cast<uintptr_t>(memory_.data());
  if (at < base || at - base > memory_.size() || bytes > memory_.size() - (at - base)) {
    return std::nullopt;
  }
  return at - base;
}

}  // namespace dtrain::runtime
