// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>

namespace dtrain::runtime {
namespace {

// A mark deeper than this leaves no span.
constexpr uint32_t kDeepest = 32;

struct Mark {
  int64_t begin_ns;
  char name[sizeof(TimelineRecord::name)];
};

struct Marks {
  uint32_t depth;
  Mark open[kDeepest];
};

constexpr uint32_t kNoLane = ~uint32_t{0};
thread_local uint32_t this_threads_lane = kNoLane;
thread_local Marks marks;

void CopyName(std::string_view from, char (&to)[sizeof(TimelineRecord::name)]) {
  const size_t n = std::min(from.size(), sizeof(to) - 1);
  if (n > 0) std::memcpy(to, from.data(), n);
  std::memset(to + n, 0, sizeof(to) - n);
}

// Without the seal, another holder could cut the file and make every access a SIGBUS.
bool MayBePage(int fd, uint64_t& size) {
  struct stat status {};
  if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) return false;
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return false;
  size = static_cast<uint64_t>(status.st_size);
  return size >= sizeof(WorkerPage);
}

}  // namespace

int64_t NowNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void ProgressPage::Open(int fd) {
  uint64_t size = 0;
  if (page_ != nullptr || fd < 0 || !MayBePage(fd, size)) return;
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return;
  auto* page = static_cast<WorkerPage*>(memory);
  const uint32_t capacity = page->capacity;
  if (page->magic != kWorkerPageMagic || page->version != kWorkerPageVersion ||
      page->size != size || WorkerPageBytes(capacity) > size) {
    munmap(memory, size);
    return;
  }
  close(fd);  // the programs that this one starts shall not have it
  page_ = page;
  capacity_ = capacity;
}

void ProgressPage::SetJoined(bool joined) {
  if (page_ != nullptr) page_->joined.store(joined ? 1 : 0, std::memory_order_release);
}

void ProgressPage::Begin(TimelineKind kind, uint64_t number, uint64_t bytes, uint32_t group,
                         int64_t now_ns) {
  if (page_ == nullptr) return;
  constexpr auto kRelaxed = std::memory_order_relaxed;
  const uint64_t change = page_->change.load(kRelaxed);
  page_->change.store(change | 1, kRelaxed);
  std::atomic_thread_fence(std::memory_order_release);
  page_->number.store(number, kRelaxed);
  page_->bytes.store(bytes, kRelaxed);
  page_->begin_ns.store(now_ns, kRelaxed);
  page_->kind.store(static_cast<uint32_t>(kind), kRelaxed);
  page_->group.store(group, kRelaxed);
  page_->change.store((change | 1) + 1, std::memory_order_release);
}

void ProgressPage::End(uint64_t number, uint64_t operations, int64_t wait_ns, int64_t now_ns) {
  if (page_ == nullptr) return;
  constexpr auto kRelaxed = std::memory_order_relaxed;
  const auto add = [](std::atomic<uint64_t>& counter, uint64_t more) {
    counter.store(counter.load(kRelaxed) + more, kRelaxed);  // one writer: no locked addition
  };
  const int64_t begin_ns = page_->begin_ns.load(kRelaxed);
  add(page_->operations, operations);
  add(page_->total_bytes, page_->bytes.load(kRelaxed));
  add(page_->busy_ns, static_cast<uint64_t>(std::max<int64_t>(now_ns - begin_ns, 0)));
  add(page_->wait_ns, static_cast<uint64_t>(std::max<int64_t>(wait_ns, 0)));
  const uint64_t change = page_->change.load(kRelaxed);
  page_->change.store(change | 1, kRelaxed);
  std::atomic_thread_fence(std::memory_order_release);
  page_->number.store(number, kRelaxed);
  page_->begin_ns.store(0, kRelaxed);
  page_->change.store((change | 1) + 1, std::memory_order_release);
}

void ProgressPage::Write(TimelineRecord record, std::string_view name) {
  if (capacity_ == 0) return;
  CopyName(name, record.name);
  const std::lock_guard<std::mutex> lock(ring_);
  const uint64_t written = page_->written.load(std::memory_order_relaxed);
  if (written - page_->taken.load(std::memory_order_acquire) >= capacity_) {
    page_->dropped.store(page_->dropped.load(std::memory_order_relaxed) + 1,
                         std::memory_order_relaxed);
    return;
  }
  TimelineRing(page_)[written % capacity_] = record;
  page_->written.store(written + 1, std::memory_order_release);
}

uint32_t ThisThreadsLane() {
  static std::atomic<uint32_t> next{kEngineLane + 1};
  if (this_threads_lane == kNoLane) this_threads_lane = next.fetch_add(1);
  return this_threads_lane;
}

void SetThisThreadsLane(uint32_t lane) { this_threads_lane = lane; }

void BeginMark(const char* name) {
  if (marks.depth < kDeepest) {
    Mark& mark = marks.open[marks.depth];
    const std::string_view text = name == nullptr ? "" : name;
    CopyName(text, mark.name);
    mark.begin_ns = NowNs();
  }
  ++marks.depth;
}

void EndMark(ProgressPage& page) {
  if (marks.depth == 0 || --marks.depth >= kDeepest) return;
  const Mark& mark = marks.open[marks.depth];
  TimelineRecord record{};
  record.begin_ns = mark.begin_ns;
  record.end_ns = NowNs();
  record.kind = static_cast<uint32_t>(TimelineKind::kMark);
  record.lane = ThisThreadsLane();
  page.Write(record, mark.name);
}

}  // namespace dtrain::runtime
