// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/executor.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

#include "runtime/base/types.h"
#include "runtime/engine/fusion.h"
#include "runtime/reduce/reduce_all.h"
#include "runtime/shm/local_group.h"

namespace dtrain::runtime {
namespace {

constexpr size_t kBufferStep = size_t{1} << 20;

// The only work of a group of one rank.
void RunAlone(const Collective& what) {
  if (what.kind == Collective::Kind::kBarrier || what.kind == Collective::Kind::kBroadcast) return;
  if (what.count == 0 || what.input == what.output) return;
  std::memcpy(what.output, what.input, what.count * ElementSize(what.type));
}

// What runs as one. The host works while the device does what was launched before.
std::vector<std::vector<Operation*>> BatchesOf(const std::vector<Operation*>& agreed,
                                               size_t threshold) {
  std::vector<std::vector<Operation*>> batches;
  for (const Via via : {Via::kDevice, Via::kStaged, Via::kHost}) {
    std::vector<Operation*> those;
    std::vector<Collective> what;
    for (Operation* operation : agreed) {
      if (operation->via != via) continue;
      those.push_back(operation);
      what.push_back(operation->what);
    }
    for (const std::vector<size_t>& batch : PlanBatches(what, threshold)) {
      std::vector<Operation*>& operations = batches.emplace_back();
      for (const size_t i : batch) operations.push_back(those[i]);
    }
  }
  return batches;
}

}  // namespace

Executor::~Executor() { FreeBuffer(); }

MaybeError Executor::broken() const {
  MaybeError error = failure_.get();
  if (error) error->message = "the job is broken since an earlier failure: " + error->message;
  return error;
}

MaybeError Executor::Run(Operation& operation) {
  if (MaybeError error = broken()) return error;
  Group& group = *operation.group;
  const Collective& what = operation.what;
  if (operation.on_device()) {
    if (MaybeError error = PrepareForDevice(operation)) return error;
  }
  operation.number = group.next_number++;
  const bool watched = progress_.watched();
  const int64_t begin_ns = watched ? NowNs() : 0;
  progress_.Begin(KindOf(what), operation.number, BytesOf(what), group.id, begin_ns);
  Spent spent;
  spent.begin_ns = begin_ns;
  MaybeError error =
      operation.on_device() ? RunOnDevice(operation, spent) : Transfer(group, what, spent);
  if (watched) {
    const int64_t end_ns = NowNs();
    progress_.End(group.id, operation.number, 1, spent.wait_ns, end_ns);
    if (progress_.has_timeline()) {
      Progress::Run run = progress_.Describe({&operation}, begin_ns);
      run.spent = spent;
      progress_.Record(run, end_ns);
    }
  }
  if (!error) return std::nullopt;
  return Break(operation, std::move(*error));
}

MaybeError Executor::PrepareForDevice(Operation& operation) const {
  DeviceCommunicator& device = *operation.group->device;
  auto via = device.ViaOf(operation.what);
  if (!via.ok()) return via.error();
  operation.via = *via;
  if (*via == Via::kHost) return std::nullopt;
  auto after = device.Record(operation.what.stream);
  if (!after.ok()) return after.error();
  operation.registered = device.RegisteredUse(operation.what);
  operation.after = std::move(*after);
  return std::nullopt;
}

// Returns at the end of the collective.
MaybeError Executor::RunOnDevice(Operation& operation, Spent& spent) {
  Group& group = *operation.group;
  if (MaybeError error = negotiator_.AgreeOnCall(group, operation, spent)) return error;
  const int64_t agreed_ns = NowNs();
  if (spent.begin_ns != 0) spent.negotiate_ns = agreed_ns - spent.begin_ns;
  if (operation.via == Via::kHost) return Transfer(group, operation.what, spent);
  auto turn = TakeTurn(group);
  if (!turn.ok()) return turn.error();
  DeviceCommunicator::Work work;
  work.all = {operation.what};
  work.all[0].number = operation.number;
  work.after = {std::move(operation.after)};
  work.direct = operation.via == Via::kDevice;
  auto ticket = group.device->Launch(std::move(work), group.timeout.load(), nullptr);
  if (!ticket.ok()) return ticket.error();
  turn->reset();
  MaybeError error = group.device->Await(*ticket);
  if (spent.begin_ns != 0) spent.transfer_ns = NowNs() - agreed_ns;
  return error;
}

MaybeError Executor::Transfer(Group& group, Collective what, Spent& spent) {
  what.number = group.next_run++;
  if (group.communicator != nullptr) {
    return group.communicator->Run(what, group.timeout.load(), spent);
  }
  RunAlone(what);
  return std::nullopt;
}

MaybeError Executor::Capture(Operation& operation) {
  if (MaybeError error = broken()) return error;
  Group& group = *operation.group;
  if (operation.allocate) {
    return Error{DTRAIN_ERROR_UNSUPPORTED,
                 "a CUDA graph cannot hold a collective whose ranks have any number of rows"};
  }
  operation.number = group.next_number++;
  operation.what.number = operation.number;
  auto ticket = group.device->Capture(operation.what);
  if (!ticket.ok()) return ticket.error();
  operation.ticket = *ticket;
  return std::nullopt;
}

Result<std::unique_ptr<LaunchOrder::Turn>> Executor::TakeTurn(Group& group, bool always) {
  if (!always && !order_.begun()) return std::unique_ptr<LaunchOrder::Turn>();
  auto turn = std::make_unique<LaunchOrder::Turn>(order_, group.id);
  int64_t time = turn->proposal();
  if (group.communicator != nullptr) {
    Collective latest;
    latest.kind = Collective::Kind::kAllreduce;
    latest.count = 1;
    latest.type = DTRAIN_INT64;
    latest.op = DTRAIN_MAX;
    latest.input = latest.output = &time;
    Spent spent;
    if (MaybeError error = negotiator_.RunOwn(group, latest, spent)) return *error;
  }
  turn->Await(time);
  return turn;
}

MaybeError Executor::JoinStream(const Operation& operation) {
  if (operation.ticket == 0) return std::nullopt;
  MaybeError error = operation.group->device->Join(operation.ticket, operation.what.stream);
  if (!error) return std::nullopt;
  return Break(operation, std::move(*error));
}

MaybeError Executor::AwaitDevice(const Group& group) {
  if (group.device == nullptr || broken()) return std::nullopt;
  MaybeError error = group.device->AwaitAll();
  if (error) SetBroken(*error);
  return error;
}

bool Executor::IsOver(const Operation& operation) const {
  return operation.ticket == 0 || operation.group->device->Done(operation.ticket);
}

Error Executor::Locate(const Operation& operation, Error error) const {
  const Group& group = *operation.group;
  const Group& world = groups_.world();
  std::string text = "rank " + std::to_string(world.rank) + " of " + std::to_string(world.size);
  if (group.id != 0) {
    text += " (rank " + std::to_string(group.rank) + " of the group of ranks " +
            MembersText(group) + ")";
  }
  std::string what = Describe(operation.what);
  if (operation.allocate) what = what.substr(0, what.find(" of ")) + " of any number of rows";
  text += ", collective " + std::to_string(operation.number) + " (" + what;
  if (!operation.name.empty()) text += ", \"" + Printable(operation.name) + "\"";
  return {error.code, text + "): " + error.message};
}

Error Executor::Break(const Operation& operation, Error error) {
  Error located = Locate(operation, std::move(error));
  std::string& text = located.message;
  if (located.code == DTRAIN_ERROR_TIMEOUT) {
    text += "; another rank is stopped or late, or waits in another call (" +
            LimitText(*operation.group) + ")";
  }
  if (operation.group->FailsAlone(located)) {
    text += "; only this group has failed";
    return located;
  }
  // A rank that has left will not come: it is of no interest how this collective would have begun.
  const bool has_left = located.code == DTRAIN_ERROR_MISMATCH && IsLeaving(text);
  for (const auto& [opening, who] :
       {std::pair(Negotiator::Opening(kMostOffered),
                  "asynchronous collectives, dtrain_group_create and dtrain_join begin"),
        std::pair(Negotiator::Opening(1), "blocking collectives on GPUs begin"),
        std::pair(Negotiator::RegistrationOpening(), "dtrain_register begins")}) {
    const std::string described = Describe(opening);
    const size_t at = text.find(described);
    if (at == std::string::npos) continue;
    if (has_left) {
      text.replace(at, described.size(), Describe(operation.what));
    } else {
      text += "; '" + described + "' is how " + who;
    }
  }
  if (has_left) {
    text +=
        operation.what.kind == Collective::Kind::kAllreduce
            ? "; did it get less data? A rank that has no more calls dtrain_join first (Python: "
              "join())"
            : "; did it get less data than the others?";
  }
  SetBroken(located);
  return located;
}

void Executor::SetBroken(const Error& error) {
  if (failure_.Set(error)) groups_.AbortAll(error);
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
  progress_.Begin(KindOf(first.what), first.number, BytesOf(first.what), group.id, begin_ns);
  Spent agreeing;
  auto verdict = negotiator_.Agree(group, pending, stuck, agreeing);
  const int64_t agreed_ns = NowNs();
  if (!verdict.ok()) {
    progress_.End(group.id, first.number, 0, agreeing.wait_ns, agreed_ns);
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
    if (over > 0) progress_.End(group.id, number, 0, agreeing.wait_ns, agreed_ns);
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
  std::map<const Operation*, MaybeError> failed;  // before anything runs
  bool launches = false, makes_group = false;
  for (Operation* operation : agreed) {
    operation->number = group.next_number++;
    launches |= operation->via != Via::kHost;  // of unequal rows, too: where, they know afterwards
    makes_group |= operation->then != nullptr;
  }
  std::unique_ptr<LaunchOrder::Turn> turn;
  if (group.device != nullptr && (launches || makes_group) && !broken()) {
    auto taken = TakeTurn(group, makes_group);
    if (taken.ok()) turn = std::move(*taken);
    if (!taken.ok()) failed[agreed[0]] = Break(*agreed[0], taken.error());
  }
  // Within the turn: the program's memory may wait for all that the GPU has, and what has agreed
  // on a time must not wait for what comes later.
  for (Operation* operation : agreed) {
    if (!operation->allocate || broken()) continue;
    if (MaybeError error = Measure(*operation)) {
      failed[operation] = Break(*operation, std::move(*error));
    }
  }
  const bool may_fuse = group.communicator != nullptr || group.device != nullptr;
  for (const std::vector<Operation*>& operations : BatchesOf(agreed, may_fuse ? threshold : 0)) {
    Operation& first = *operations[0];
    if (first.via == Via::kHost && !makes_group) turn.reset();
    MaybeError error = failed.count(&first) != 0 ? failed[&first] : broken();
    const bool was_broken = error.has_value();
    if (!error) {
      Progress::Run run = progress_.Describe(operations, begin_ns);
      run.spent = spent;
      run.spent.wait_ns = waited_ns;
      error = first.via == Via::kHost ? RunBatch(operations, std::move(run))
                                      : LaunchBatch(operations, std::move(run));
    }
    // The others wait for this rank, whatever has failed here.
    if (error && !was_broken) error = Break(first, std::move(*error));
    if (!error && first.then) first.then();
    for (Operation* operation : operations) done(*operation, error);
    spent = {};
    waited_ns = 0;
    begin_ns = NowNs();
  }
}

// One or several operations as one transfer. What `run` says was waited for others is over already.
MaybeError Executor::RunBatch(const std::vector<Operation*>& operations, Progress::Run run) {
  const Operation& first = *operations[0];
  const int64_t waited_ns = std::exchange(run.spent.wait_ns, 0);
  progress_.Begin(run.kind, first.number, run.bytes, run.group, run.begin_ns);
  std::vector<int64_t> ends;
  const bool unequal = !first.counts.empty() && first.what.kind == Collective::Kind::kAllgather;
  MaybeError error = operations.size() > 1 ? RunFused(*first.group, operations, run.spent, ends)
                     : unequal             ? GatherRows(first, run.spent)
                                           : Transfer(*first.group, first.what, run.spent);
  const int64_t end_ns = NowNs();
  progress_.End(run.group, operations.back()->number, operations.size(),
                waited_ns + run.spent.wait_ns, end_ns);
  if (ends.empty() || !error) progress_.Record(run, end_ns, ends);
  return error;
}

// In flight afterwards, or done where buffers had to be brought to the device.
MaybeError Executor::LaunchBatch(const std::vector<Operation*>& operations, Progress::Run run) {
  DeviceCommunicator::Work work;
  work.direct = operations[0]->via == Via::kDevice;
  for (Operation* operation : operations) {
    work.all.push_back(operation->what);
    work.all.back().number = operation->number;
    work.after.push_back(std::move(operation->after));
  }
  const uint64_t id = progress_.Launched(std::move(run));
  auto ticket = operations[0]->group->device->Launch(
      std::move(work), operations[0]->group->timeout.load(),
      [&progress = progress_, id](int64_t done_ns) { progress.Landed(id, done_ns); });
  if (!ticket.ok()) {
    progress_.Forget(id);
    return ticket.error();
  }
  for (Operation* operation : operations) operation->ticket = *ticket;
  return std::nullopt;
}

// `ends`: when the transfer was through, and then when each operation had its result.
MaybeError Executor::RunFused(Group& group, const std::vector<Operation*>& operations, Spent& spent,
                              std::vector<int64_t>& ends) {
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
  Communicator* world = main_ ? groups_.world().communicator.get() : nullptr;
  FreeBuffer();
  if (world != nullptr) {
    auto memory = world->Allocate(room);
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
  if (buffer_is_plain_) {
    std::free(buffer_);
  } else if (buffer_ != nullptr && groups_.world().communicator != nullptr) {
    (void)groups_.world().communicator->Free(buffer_);
  }
  buffer_ = nullptr;
  buffer_bytes_ = 0;
  buffer_is_plain_ = false;
}

}  // namespace dtrain::runtime
