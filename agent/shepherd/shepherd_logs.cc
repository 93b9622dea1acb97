// SPDX-License-Identifier: Apache-2.0
// The workers' output: who is told how much there is of it, and when it may be dropped.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/shepherd/shepherd.h"

namespace dtrain::shepherd {
namespace {

// How often the agent hears how much was written, for those who ask about the job.
constexpr Duration kSizesEvery = std::chrono::seconds(1);
constexpr v1::StreamKind kKinds[] = {v1::STREAM_KIND_STDOUT, v1::STREAM_KIND_STDERR};

}  // namespace

void Shepherd::FeedLogs() {
  for (auto& worker : workers_) {
    for (v1::StreamKind kind : kKinds) feed_.Add({worker->rank(), kind}, worker->log(kind));
  }
}

void Shepherd::OnLogTaken(const v1::LogPosition& taken) {
  Worker* worker = Find(taken.rank());
  if (worker != nullptr) worker->log(taken.stream()).Delivered(taken.offset());
}

void Shepherd::OnUnreadable(uint32_t rank, const absl::Status& why) {
  if (core_.state() == State::kFinished) return;  // nothing is said any more
  Warn(absl::StrCat("the output of rank ", rank, " waits: ", std::string(why.message()),
                    "; nothing is lost if it can be read again"));
}

void Shepherd::MarkGrown(uint32_t rank, v1::StreamKind kind) {
  grown_.emplace(rank, kind);
  if (std::exchange(grown_posted_, true)) return;
  loop_.Post([this] { SendGrown(); });
}

void Shepherd::SendGrown() {
  grown_posted_ = false;
  if (!reported_started_) return;  // FeedLogs is still to come, or never will
  for (const LogFeed::Key& key : grown_) feed_.Grown(key);
  sizes_due_.merge(std::exchange(grown_, {}));
  feed_.Pump();
  if (!sizes_due_.empty() && !sizes_planned_) ReportSizes();
}

void Shepherd::ReportAllSizes() {
  if (!reported_started_) return;
  for (auto& worker : workers_) {
    for (v1::StreamKind kind : kKinds) sizes_due_.emplace(worker->rank(), kind);
  }
  ReportSizes();
}

void Shepherd::ReportSizes() {
  sizes_planned_ = true;
  sizes_.After(kSizesEvery, [this] {
    sizes_planned_ = false;
    if (!sizes_due_.empty() && core_.state() != State::kFinished) ReportSizes();
  });
  v1::ShepherdEvent event;
  for (const auto& [rank, kind] : std::exchange(sizes_due_, {})) {
    Worker* worker = Find(rank);
    if (worker == nullptr) continue;
    v1::LogEnd& stream = *event.mutable_log_sizes()->add_streams();
    stream.set_rank(rank);
    stream.set_stream(kind);
    stream.set_size(worker->log(kind).size());
  }
  line_.Tell(event);
}

}  // namespace dtrain::shepherd
