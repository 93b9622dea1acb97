// SPDX-License-Identifier: Apache-2.0
#include "launcher/detached/journal.h"

#include <algorithm>
#include <iterator>

#include "absl/time/clock.h"
#include "common/base/check.h"
#include "launcher/journal/records.h"
#include "launcher/journal/replay.h"

namespace dtrain::detached {

Journal::Journal(loop::Loop& loop, std::pair<JournalFile, journal::Contents> opened,
                 std::string build, OnTrouble on_trouble, uint64_t compact_above)
    : loop_(loop),
      build_(std::move(build)),
      on_trouble_(std::move(on_trouble)),
      job_id_(opened.second.header.job_id()),
      state_(std::move(opened.second.state)),
      compactable_(opened.second.unknown == 0),
      most_bytes_(compact_above),
      compact_above_(compact_above),
      size_(opened.first.size()),
      retry_(loop),
      file_(std::make_shared<JournalFile>(std::move(opened.first))) {}

Journal::~Journal() { *alive_ = false; }

absl::Status Journal::Append(v1::JournalRecord record, loop::Task synced) {
  DTRAIN_ON_THREAD(loop_);
  if (absl::Status sound = journal::CheckRecord(record); !sound.ok()) return sound;
  if (absl::Status legal = journal::Apply(record, state_); !legal.ok()) return legal;
  queue_.push_back({std::move(record), std::move(synced)});
  Wake();
  return absl::OkStatus();
}

void Journal::Flush(loop::Task synced) {
  DTRAIN_ON_THREAD(loop_);
  if (queue_.empty() && batch_.empty()) return loop_.Post(std::move(synced));
  Item& last = queue_.empty() ? batch_.back() : queue_.back();
  last.synced = [before = std::move(last.synced), synced = std::move(synced)]() mutable {
    if (before) before();
    synced();
  };
}

// What else this turn of the loop appends goes along.
void Journal::Wake() {
  if (woken_ || running_ || waiting_) return;
  woken_ = true;
  loop_.Post([this, alive = alive_] {
    if (!*alive) return;
    woken_ = false;
    if (!running_ && !waiting_) Start();
  });
}

void Journal::Start() {
  if (queue_.empty()) return;
  running_ = true;
  batch_ = std::exchange(queue_, {});
  Run(Encode());
}

// state_ has all of the batch, and the queue is empty.
Journal::Work Journal::Encode() {
  Work work;
  // A file was replaced, and its name is not on disk yet: that comes first.
  const bool settled = std::all_of(batch_.begin(), batch_.end(),
                                   [](const Item& item) { return item.record.has_value(); });
  if (size_ > compact_above_ && compactable_ && settled) {
    compact_above_ = 2 * size_;  // not at each record from now on, if this does not succeed
    work.replace =
        journal::AppendRecord(journal::Header(job_id_, build_), true, &work.frames).ok() &&
        journal::AppendRecord(journal::Snapshot(state_), false, &work.frames).ok();
    if (work.replace) return work;
    work.frames.clear();
  }
  for (const Item& item : batch_) {
    if (!item.record) continue;
    // Append has looked at all that may be wrong with it.
    DTRAIN_CHECK(journal::AppendRecord(*item.record, work.frames.empty(), &work.frames).ok());
  }
  return work;
}

void Journal::Run(Work work) {
  auto shared = std::make_shared<Work>(std::move(work));
  auto task = [this, alive = alive_, &loop = loop_, file = file_, shared] {
    shared->status = shared->replace ? file->Replace(shared->frames, shared->replaced)
                                     : file->Commit(shared->frames);
    shared->size = file->size();
    loop.Post([this, alive, shared] {
      if (*alive) OnDone(std::move(*shared));
    });
  };
  // Without a thread (workers may have taken all there are) the loop waits for the disk.
  if (!thread_.TryRun(task).ok()) task();
}

void Journal::OnDone(Work work) {
  running_ = false;
  size_ = work.size;
  if (work.replaced) compact_above_ = std::max(most_bytes_, 2 * size_);
  if (!work.status.ok()) return OnFailure(work);
  std::deque<Item> done = std::exchange(batch_, {});
  if (!queue_.empty()) Wake();
  const std::shared_ptr<bool> alive = alive_;
  if (trouble_since_) {
    trouble_since_.reset();
    trouble_ = absl::OkStatus();
    if (on_trouble_) on_trouble_(absl::OkStatus());
  }
  for (Item& item : done) {
    if (*alive && item.synced) item.synced();
  }
}

void Journal::OnFailure(const Work& work) {
  if (work.replaced) {
    for (Item& item : batch_) item.record.reset();
  }
  batch_.insert(batch_.end(), std::make_move_iterator(queue_.begin()),
                std::make_move_iterator(queue_.end()));
  queue_ = std::exchange(batch_, {});
  waiting_ = true;
  retry_.After(kJournalRetry, [this] {
    waiting_ = false;
    Start();
  });
  trouble_ = work.status;
  if (trouble_since_) return;
  trouble_since_ = absl::Now();
  if (on_trouble_) on_trouble_(trouble_);
}

}  // namespace dtrain::detached
