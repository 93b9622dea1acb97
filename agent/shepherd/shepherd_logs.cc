// SPDX-License-Identifier: Apache-2.0
// The workers' output: who is told how much there is of it, and when it may be dropped.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/shepherd/shepherd.h"

namespace dtrain::shepherd {
namespace {

constexpr v1::StreamKind kKinds[] = {v1::STREAM_KIND_STDOUT, v1::STREAM_KIND_STDERR};

}  // namespace

void Shepherd::FeedLogs() {
  for (const auto& worker : workers_.all()) {
    for (v1::StreamKind kind : kKinds) feed_.Add({worker->rank(), kind}, worker->log(kind));
  }
}

void Shepherd::OnLogTaken(const v1::LogPosition& taken) {
  Worker* worker = workers_.Find(taken.rank());
  if (worker != nullptr) worker->log(taken.stream()).Delivered(taken.offset());
}

void Shepherd::OnUnreadable(uint32_t rank, const absl::Status& why) {
  if (core_.state() == State::kFinished) return;  // nothing is said any more
  launcher_.Warn(absl::StrCat("the output of rank ", rank, " waits: ", std::string(why.message()),
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
  for (const LogFeed::Key& key : std::exchange(grown_, {})) {
    Worker* worker = workers_.Find(key.first);
    if (worker != nullptr)
      report_.job().OnSize(key.first, key.second, worker->log(key.second).size());
  }
  feed_.Pump();
  report_.TellLater();
}

}  // namespace dtrain::shepherd
