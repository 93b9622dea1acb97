// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "common/base/posix_error.h"

namespace dtrain::shepherd {
namespace {

constexpr int kReadTries = 4;  // of a field that the worker is changing

// Of what a worker wrote: any numbers there may be.
int64_t Difference(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
}

int64_t Now(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

absl::StatusOr<Page> Page::Make(uint32_t capacity) {
  const auto page_size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t size = (WorkerPageBytes(capacity) + page_size - 1) / page_size * page_size;
  Page made;
  made.fd_.Reset(memfd_create("dtrain-page", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!made.fd_) return PosixError(errno, "make the page of a worker in memory");
  // Sealed: a worker that cut it short would end the shepherd with SIGBUS.
  if (ftruncate(made.fd_.get(), static_cast<off_t>(size)) != 0 ||
      fcntl(made.fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return PosixError(errno, "size the page of a worker");
  }
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, made.fd_.get(), 0);
  if (memory == MAP_FAILED) return PosixError(errno, "map the page of a worker");
  made.size_ = size;
  made.from_unix_ns_ = Now(CLOCK_MONOTONIC) - Now(CLOCK_REALTIME);
  made.capacity_ = capacity;
  made.page_ = new (memory) WorkerPage();
  made.page_->magic = kWorkerPageMagic;
  made.page_->version = kWorkerPageVersion;
  made.page_->size = size;
  made.page_->capacity = capacity;
  return made;
}

Page::Page(Page&& other) noexcept { *this = std::move(other); }

Page& Page::operator=(Page&& other) noexcept {
  if (this == &other) return *this;
  Unmap();
  fd_ = std::move(other.fd_);
  page_ = std::exchange(other.page_, nullptr);
  size_ = other.size_;
  capacity_ = other.capacity_;
  from_unix_ns_ = other.from_unix_ns_;
  return *this;
}

Page::~Page() { Unmap(); }

void Page::Unmap() {
  if (page_ != nullptr) munmap(page_, size_);
  page_ = nullptr;
}

std::optional<v1::RankProgress> Page::Read() const {
  if (page_ == nullptr) return std::nullopt;
  v1::RankProgress out;
  out.set_joined(page_->joined.load() == 1);
  out.set_operations(page_->operations.load());
  if (!out.joined() && out.operations() == 0) return std::nullopt;
  out.set_total_bytes(page_->total_bytes.load());
  out.set_busy_nanos(page_->busy_ns.load());
  out.set_wait_nanos(page_->wait_ns.load());
  // A worker that was killed in the middle of a change leaves `change` odd: then what stands there
  // is told all the same, it is one collective or the next.
  for (int i = 0; i < kReadTries; ++i) {
    const uint64_t before = page_->change.load();
    const int64_t begin = page_->begin_ns.load();
    out.set_inside(begin > 0 && out.joined());
    out.set_inside_nanos(out.inside() ? std::max<int64_t>(Now(CLOCK_MONOTONIC) - begin, 0) : 0);
    out.set_number(page_->number.load());
    out.set_bytes(page_->bytes.load());
    out.set_kind(page_->kind.load());
    out.set_group(page_->group.load());
    if (before % 2 == 0 && page_->change.load() == before) break;
  }
  return out;
}

uint64_t Page::spans() const {
  return page_ == nullptr ? 0 : page_->written.load() - page_->taken.load();
}

bool Page::TakeSpans(uint32_t most, v1::Spans& spans) {
  if (page_ == nullptr || capacity_ == 0) return false;
  const uint64_t written = page_->written.load(std::memory_order_acquire);
  uint64_t taken = page_->taken.load();
  spans.set_dropped(page_->dropped.load());
  // More than the ring holds: the worker's numbers are nonsense.
  if (written < taken || written - taken > capacity_) return false;
  const TimelineRecord* ring = TimelineRing(page_);
  const uint64_t end = std::min(written, taken + most);
  const bool any = taken < end;
  TimelineRecord before{};
  before.begin_ns = from_unix_ns_;
  for (; taken < end; ++taken) {
    TimelineRecord record;
    std::memcpy(&record, ring + taken % capacity_, sizeof(record));
    spans.add_kind(record.kind);
    spans.add_lane(record.lane);
    spans.add_number_step(static_cast<int64_t>(record.number - before.number));
    spans.add_bytes(record.bytes);
    spans.add_begin_step(Difference(record.begin_ns, before.begin_ns));
    spans.add_duration_nanos(std::max<int64_t>(Difference(record.end_ns, record.begin_ns), 0));
    spans.add_negotiate_nanos(record.negotiate_ns);
    spans.add_wait_nanos(record.wait_ns);
    spans.add_transfer_nanos(record.transfer_ns);
    spans.add_reduce_nanos(record.reduce_ns);
    const size_t name_bytes = strnlen(record.name, sizeof(record.name));
    spans.add_name_bytes(static_cast<uint32_t>(name_bytes));
    if (name_bytes > 0) spans.mutable_names()->append(record.name, name_bytes);
    before = record;
  }
  page_->taken.store(taken, std::memory_order_release);
  return any;
}

}  // namespace dtrain::shepherd
