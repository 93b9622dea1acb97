// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/executor.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "runtime/base/types.h"
#include "runtime/engine/fusion.h"
#include "runtime/reduce/reduce_all.h"

namespace dtrain::runtime {
namespace {

constexpr size_t kBufferStep = size_t{1} << 20;

// The only work of a group of one rank.
void RunAlone(const Collective& what) {
  if (what.kind == Collective::Kind::kBarrier || what.kind == Collective::Kind::kBroadcast) return;
  if (what.count == 0 || what.input == what.output) return;
  std::memcpy(what.output, what.input, what.count * ElementSize(what.type));
}

size_t BytesOf(const Collective& what) {
  return what.kind == Collective::Kind::kBarrier ? 0 : what.count * ElementSize(what.type);
}

TimelineKind KindOf(const Collective& what) {
  return static_cast<TimelineKind>(static_cast<uint32_t>(what.kind));
}

}  // namespace

Executor::~Executor() { FreeBuffer(); }

MaybeError Executor::broken() const {
  if (!is_broken_.load(std::memory_order_acquire)) return std::nullopt;
  const std::lock_guard<std::mutex> lock(broken_mutex_);
  return Error{broken_->code, "the job is broken since an earlier failure: " + broken_->message};
}

MaybeError Executor::Run(Operation& operation, bool wait_for_device) {
  if (MaybeError error = broken()) return error;
  Group& group = *operation.group;
  const Collective& what = operation.what;
  operation.number = group.next_number++;
  const bool watched = page_.open();
  const int64_t begin_ns = watched ? NowNs() : 0;
  page_.Begin(KindOf(what), operation.number, BytesOf(what), group.id, begin_ns);
  Spent spent;
  spent.begin_ns = begin_ns;
  MaybeError error = Transfer(group, what, spent);
  if (!error && wait_for_device && group.communicator != nullptr) {
    error = group.communicator->Finish(what.stream, env_.collective_timeout);
  }
  if (watched) {
    const int64_t end_ns = NowNs();
    page_.End(operation.number, 1, spent.wait_ns, end_ns);
    Record(operation, begin_ns, end_ns, spent);
  }
  if (!error) return std::nullopt;
  return Break(operation, std::move(*error));
}

MaybeError Executor::Transfer(Group& group, Collective what, Spent& spent) {
  what.number = group.next_run++;
  if (group.communicator != nullptr) {
    return group.communicator->Run(what, env_.collective_timeout, spent);
  }
  RunAlone(what);
  return std::nullopt;
}

void Executor::FillRecord(TimelineRecord& record, uint64_t number, uint64_t bytes,
                          TimelineKind kind, const Spent& spent) {
  record.negotiate_ns = spent.negotiate_ns;
  record.wait_ns = spent.wait_ns;
  record.transfer_ns = spent.transfer_ns;
  record.reduce_ns = spent.reduce_ns;
  record.number = number;
  record.bytes = bytes;
  record.kind = static_cast<uint32_t>(kind);
  record.lane = ThisThreadsLane();
}

void Executor::Record(const Operation& operation, int64_t begin_ns, int64_t end_ns,
                      const Spent& spent) {
  if (!page_.has_timeline()) return;
  TimelineRecord record{};
  FillRecord(record, operation.number, BytesOf(operation.what), KindOf(operation.what), spent);
  record.begin_ns = begin_ns;
  record.end_ns = end_ns;
  page_.Write(record, operation.name);
}

Error Executor::Locate(const Operation& operation, Error error) const {
  const Group& group = *operation.group;
  const Group& world = groups_.world();
  std::string text = "rank " + std::to_string(world.rank) + " of " + std::to_string(world.size);
  if (group.id != 0) {
    text += " (rank " + std::to_string(group.rank) + " of the group of ranks " +
            MembersText(group) + ")";
  }
  text += ", collective " + std::to_string(operation.number) + " (" + Describe(operation.what);
  if (!operation.name.empty()) text += ", \"" + Printable(operation.name) + "\"";
  return {error.code, text + "): " + error.message};
}

Error Executor::Break(const Operation& operation, Error error) {
  Error located = Locate(operation, std::move(error));
  std::string& text = located.message;
  if (located.code == DTRAIN_ERROR_TIMEOUT) {
    text +=
        "; another rank is stopped or late, or waits in another call "
        "(DTRAIN_COLLECTIVE_TIMEOUT_SECONDS sets how long to wait)";
  }
  const std::string opening = Describe(Negotiator::Opening());
  if (text.find(opening) != std::string::npos) {
    text += "; '" + opening + "' is how asynchronous collectives and dtrain_join begin";
  }
  SetBroken(located);
  return located;
}

void Executor::SetBroken(const Error& error) {
  {
    const std::lock_guard<std::mutex> lock(broken_mutex_);
    if (broken_) return;
    broken_ = error;
    is_broken_.store(true, std::memory_order_release);
  }
  groups_.AbortAll(error.message);
}

size_t Executor::RunAgreed(const std::vector<Operation*>& pending, bool stuck, size_t threshold,
                           const Done& done) {
  const auto fail_all = [&](const MaybeError& error) {
    for (Operation* operation : pending) done(*operation, error);
    return pending.size();
  };
  if (MaybeError error = broken()) return fail_all(error);
  Operation& first = *pending[0];
  Group& group = *first.group;
  const uint64_t number = first.number = group.next_number;
  // Rounds that agree on nothing are one wait to those who look from outside.
  const int64_t begin_ns = stalled_since_ns_ != 0 ? stalled_since_ns_ : NowNs();
  page_.Begin(KindOf(first.what), first.number, BytesOf(first.what), group.id, begin_ns);
  Spent agreeing;
  auto verdict = negotiator_.Agree(group, pending, stuck, agreeing);
  const int64_t agreed_ns = NowNs();
  if (!verdict.ok()) {
    page_.End(first.number, 0, agreeing.wait_ns, agreed_ns);
    return fail_all(Break(first, verdict.error()));
  }
  const size_t over = verdict->run.size() + verdict->refused.size();
  stalled_since_ns_ = over == 0 ? begin_ns : 0;
  for (auto& [operation, error] : verdict->refused) {
    operation->number = group.next_number;
    done(*operation, Locate(*operation, error));
  }
  if (verdict->run.empty()) {
    // Who waited for the first one may have taken it away by now.
    if (over > 0) page_.End(number, 0, agreeing.wait_ns, agreed_ns);
    return over;
  }
  Spent spent;
  spent.negotiate_ns = agreed_ns - begin_ns;
  RunBatches(verdict->run, threshold, spent, agreeing.wait_ns, begin_ns, done);
  return over;
}

void Executor::RunBatches(const std::vector<Operation*>& agreed, size_t threshold, Spent spent,
                          int64_t waited_ns, int64_t begin_ns, const Done& done) {
  Group& group = *agreed[0]->group;
  std::vector<Collective> what;
  for (Operation* operation : agreed) {
    operation->number = group.next_number++;
    what.push_back(operation->what);
  }
  const bool may_fuse =
      group.communicator != nullptr && (!group.on_device || group.communicator->HasRunTogether());
  for (const std::vector<size_t>& batch : PlanBatches(what, may_fuse ? threshold : 0)) {
    std::vector<Operation*> operations;
    for (const size_t i : batch) operations.push_back(agreed[i]);
    MaybeError error = broken();
    if (!error) error = RunBatch(operations, spent, waited_ns, begin_ns);
    for (Operation* operation : operations) done(*operation, error);
    spent = {};
    waited_ns = 0;
    begin_ns = NowNs();
  }
}

// One or several operations as one transfer. `waited_ns` is what was waited for others since
// `begin_ns` already.
MaybeError Executor::RunBatch(const std::vector<Operation*>& operations, Spent& spent,
                              int64_t waited_ns, int64_t begin_ns) {
  const Operation& first = *operations[0];
  const Operation& last = *operations.back();
  const bool fused = operations.size() > 1;
  uint64_t bytes = 0;
  for (const Operation* operation : operations) bytes += BytesOf(operation->what);
  page_.Begin(fused ? TimelineKind::kFusion : KindOf(first.what), first.number, bytes,
              first.group->id, begin_ns);
  std::vector<int64_t> ends;
  MaybeError error = fused ? RunFused(*first.group, operations, spent, ends)
                           : Transfer(*first.group, first.what, spent);
  const int64_t end_ns = NowNs();
  page_.End(last.number, operations.size(), waited_ns + spent.wait_ns, end_ns);
  if (!fused) {
    Record(first, begin_ns, end_ns, spent);
  } else if (page_.has_timeline() && !error) {
    TimelineRecord record{};
    FillRecord(record, first.number, bytes, TimelineKind::kFusion, spent);
    record.begin_ns = begin_ns;
    record.end_ns = end_ns;
    page_.Write(record, std::to_string(operations.size()) + " all-reduces");
    for (size_t i = 0; i < operations.size(); ++i) {
      Record(*operations[i], ends[i], ends[i + 1], {});
    }
  }
  if (!error) return std::nullopt;
  return Break(first, std::move(*error));
}

// `ends`: when the transfer was through, and then when each operation had its result.
MaybeError Executor::RunFused(Group& group, const std::vector<Operation*>& operations, Spent& spent,
                              std::vector<int64_t>& ends) {
  if (group.communicator->HasRunTogether()) {
    std::vector<Collective> parts;
    for (const Operation* operation : operations) {
      parts.push_back(operation->what);
      parts.back().number = group.next_run++;
    }
    MaybeError error = group.communicator->RunTogether(parts, env_.collective_timeout, spent);
    ends.assign(operations.size() + 1, NowNs());
    return error;
  }
  size_t count = 0;
  for (const Operation* operation : operations) count += operation->what.count;
  Collective whole = operations[0]->what;
  auto buffer = Buffer(count * ElementSize(whole.type));
  if (!buffer.ok()) return buffer.error();
  std::byte* at = *buffer;
  for (const Operation* operation : operations) {
    const size_t bytes = BytesOf(operation->what);
    if (bytes > 0) CopyBytes(at, operation->what.input, bytes);
    at += bytes;
  }
  whole.input = *buffer;
  whole.output = *buffer;
  whole.count = count;
  if (MaybeError error = Transfer(group, whole, spent)) return error;
  ends.push_back(NowNs());
  at = *buffer;
  for (const Operation* operation : operations) {
    const size_t bytes = BytesOf(operation->what);
    if (bytes > 0) CopyBytes(operation->what.output, at, bytes);
    at += bytes;
    ends.push_back(NowNs());
  }
  return std::nullopt;
}

Result<std::byte*> Executor::Buffer(size_t bytes) {
  if (bytes <= buffer_bytes_) return buffer_;
  size_t room = kBufferStep;
  while (room < bytes) room *= 2;
  Communicator* world = groups_.world().communicator.get();
  FreeBuffer();
  if (world != nullptr) {
    auto memory = world->Allocate(room, false);
    if (memory.ok()) buffer_ = static_cast<std::byte*>(*memory);
  }
  if (buffer_ == nullptr) {
    buffer_ = static_cast<std::byte*>(std::aligned_alloc(4096, room));
    buffer_is_plain_ = true;
  }
  if (buffer_ == nullptr) {
    return Error{DTRAIN_ERROR_RESOURCES,
                 "no memory for a fusion buffer of " + std::to_string(room) + " bytes"};
  }
  buffer_bytes_ = room;
  return buffer_;
}

void Executor::FreeBuffer() {
  Communicator* world = groups_.world().communicator.get();
  if (buffer_is_plain_) {
    std::free(buffer_);
  } else if (buffer_ != nullptr && world != nullptr) {
    (void)world->Free(buffer_);
  }
  buffer_ = nullptr;
  buffer_bytes_ = 0;
  buffer_is_plain_ = false;
}

}  // namespace dtrain::runtime
