// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/worker_pages.h"

#include <algorithm>
#include <utility>

namespace dtrain::shepherd {
namespace {

// How often the pages are read. A timeline's rings, which must not run full, are looked at more
// often, and read when a part of them is used: each message is work for all who pass it on, on
// cores that the workers need.
constexpr Duration kProgressEvery = std::chrono::seconds(1);
constexpr Duration kSpansEvery = std::chrono::milliseconds(100);
constexpr uint32_t kSpansPart = 4;
constexpr uint32_t kSpansAtOnce = 768;  // what mostly fits into a message that is not kept
// Spans leave so much for what matters more.
constexpr size_t kSpansRoom = 16 << 20;

}  // namespace

void WorkerPages::Begin(uint32_t timeline_records) {
  timeline_records_ = timeline_records;
  Watch();
}

void WorkerPages::Watch() {
  next_.After(timeline_records_ > 0 ? kSpansEvery : kProgressEvery, [this] {
    Look();
    Watch();
  });
}

void WorkerPages::Look() {
  if (loop_.Now() < progress_due_) return TakeManySpans();
  progress_due_ = loop_.Now() + kProgressEvery;
  for (const auto& worker : workers_.all()) worker->LookAtState();
  Report();
}

void WorkerPages::Report() {
  v1::JobEvent now, last;  // the last of a rank must arrive
  for (const auto& worker : workers_.all()) {
    TakeSpans(*worker, 1);
    if (worker->progress_told()) continue;
    auto progress = worker->page().Read();
    v1::RankProgress state;
    const bool of_note = worker->AddState(progress ? *progress : state);
    if (!progress && !of_note) continue;
    if (!progress) progress = std::move(state);
    progress->set_rank(worker->rank());
    report_.job().OnProgress(*progress);
    v1::JobEvent& event = worker->ended() ? last : now;
    *event.mutable_progress()->add_ranks() = *std::move(progress);
    if (worker->ended()) worker->set_progress_told();
  }
  report_.TellLater();
  if (last.has_progress()) launcher_.Send(last);
  if (now.has_progress() && !launcher_.waits(LauncherLine::kProgress)) {
    launcher_.SendState(LauncherLine::kProgress, now);
  }
}

void WorkerPages::TakeManySpans() {
  for (const auto& worker : workers_.all()) {
    TakeSpans(*worker, std::max(timeline_records_ / kSpansPart, uint32_t{1}));
  }
}

void WorkerPages::TakeSpans(Worker& worker, uint64_t least) {
  // What a worker adds meanwhile waits for the next time: it may add without an end.
  uint64_t left = std::min<uint64_t>(worker.page().spans(), timeline_records_);
  // No launcher, or one that reads slowly: the worker's ring fills and counts what it drops. Of a
  // worker that has ended nobody would count them.
  while (left >= least && launcher_.attached() && launcher_.room() > kSpansRoom &&
         (worker.ended() || !launcher_.waits(LauncherLine::kSpans))) {
    spans_.Clear();
    spans_.set_rank(worker.rank());
    if (!worker.page().TakeSpans(kSpansAtOnce, spans_)) return;
    left -= std::min<uint64_t>(left, static_cast<uint64_t>(spans_.kind_size()));
    v1::JobEvent event;
    event.set_spans(spans_.SerializeAsString());
    if (worker.ended()) {
      launcher_.Send(event);
    } else {
      launcher_.SendState(LauncherLine::kSpans, event);
    }
  }
}

}  // namespace dtrain::shepherd
