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
  made.to_unix_ns_ = Now(CLOCK_REALTIME) - Now(CLOCK_MONOTONIC);
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
  to_unix_ns_ = other.to_unix_ns_;
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
  for (; taken < written && most > 0; ++taken, --most) {
    TimelineRecord record;
    std::memcpy(&record, ring + taken % capacity_, sizeof(record));
    v1::Span* span = spans.add_spans();
    span->set_kind(record.kind);
    span->set_lane(record.lane);
    span->set_number(record.number);
    span->set_bytes(record.bytes);
    span->set_begin_unix_nanos(record.begin_ns + to_unix_ns_);
    span->set_duration_nanos(std::max<int64_t>(record.end_ns - record.begin_ns, 0));
    span->set_negotiate_nanos(record.negotiate_ns);
    span->set_wait_nanos(record.wait_ns);
    span->set_transfer_nanos(record.transfer_ns);
    span->set_reduce_nanos(record.reduce_ns);
    span->set_name(record.name, strnlen(record.name, sizeof(record.name)));
  }
  page_->taken.store(taken, std::memory_order_release);
  return spans.spans_size() > 0;
}

}  // namespace dtrain::shepherd
