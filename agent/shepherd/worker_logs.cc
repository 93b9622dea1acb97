// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/worker_logs.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/shepherd/failure.h"
#include "common/base/exit_code.h"

namespace dtrain::shepherd {
namespace {

constexpr Duration kDrainRetry = std::chrono::milliseconds(20);
constexpr v1::StreamKind kStreams[] = {v1::STREAM_KIND_STDOUT, v1::STREAM_KIND_STDERR};

}  // namespace

WorkerLogs::WorkerLogs(loop::Loop& loop, const Workers& workers, AgentReport& report,
                       LauncherLine& launcher)
    : loop_(loop),
      workers_(workers),
      report_(report),
      launcher_(launcher),
      drain_(loop),
      feed_(loop, [this](uint32_t rank, const absl::Status& why) { OnUnreadable(rank, why); }) {}

void WorkerLogs::Begin() {
  begun_ = true;
  for (const auto& worker : workers_.all()) {
    for (v1::StreamKind kind : kStreams) feed_.Add({worker->rank(), kind}, worker->log(kind));
  }
}

void WorkerLogs::Serve(v1::ReadLogs request, os::UniqueFd socket) {
  feed_.Serve(std::move(request), std::move(socket));
}

void WorkerLogs::OnGrown(uint32_t rank, v1::StreamKind kind) {
  grown_.emplace(rank, kind);
  if (std::exchange(grown_posted_, true)) return;
  loop_.Post([this] { TellGrown(); });
}

void WorkerLogs::TellGrown() {
  grown_posted_ = false;
  if (!begun_) return;  // it is still to come, or never will
  for (const LogFeed::Key& key : grown_) feed_.Grown(key);
  for (const LogFeed::Key& key : std::exchange(grown_, {})) {
    Worker* const worker = workers_.Find(key.first);
    if (worker == nullptr) continue;
    report_.job().OnSize(key.first, key.second, worker->log(key.second).size());
  }
  feed_.Pump();
  report_.TellLater();
}

void WorkerLogs::OnTaken(const v1::LogPosition& taken) {
  Worker* const worker = workers_.Find(taken.rank());
  if (worker != nullptr) worker->log(taken.stream()).Delivered(taken.offset());
}

void WorkerLogs::Discard() {
  for (const auto& worker : workers_.all()) {
    for (v1::StreamKind kind : kStreams) worker->log(kind).Discard();
  }
}

void WorkerLogs::Drain(Worker& worker) {
  for (v1::StreamKind kind : kStreams) {
    (void)worker.log(kind).Drain();
    // Nobody ends its last line any more.
    feed_.LetGo({worker.rank(), kind});
    OnGrown(worker.rank(), kind);
  }
}

void WorkerLogs::DrainAll(loop::Task done) {
  bool all = true;
  for (const auto& worker : workers_.all()) {
    for (v1::StreamKind kind : kStreams) all &= worker->log(kind).Drain();
  }
  if (all) return loop_.Post(std::move(done));
  drain_.After(kDrainRetry,
               [this, done = std::move(done)]() mutable { DrainAll(std::move(done)); });
}

v1::Finished WorkerLogs::Close() {
  closed_ = true;
  v1::Finished finished;
  for (const auto& worker : workers_.all()) {
    for (v1::StreamKind kind : kStreams) {
      LogStream& log = worker->log(kind);
      if (const uint64_t lost = log.Pending(); lost > 0) OnLost(worker->rank(), lost, log);
      log.Close();
      if (!begun_) continue;
      v1::LogEnd* end = finished.add_logs();
      end->set_rank(worker->rank());
      end->set_stream(kind);
      end->set_size(log.size());
    }
  }
  return finished;
}

void WorkerLogs::OnLost(uint32_t rank, uint64_t bytes, const LogStream& log) {
  const std::string text =
      absl::StrCat("the last ", bytes, " bytes of the output of rank ", rank, " are lost");
  // Written after all was read, by a process that nothing could end.
  if (log.why_stuck().ok()) return launcher_.Warn(text);
  // The ranks may have done well: what is lost must not look like all there was.
  launcher_.SendFailure(MakeFailure(
      v1::NodeFailure::KIND_STATE, kExitState,
      absl::StrCat(text, ": ", std::string(log.why_stuck().message()),
                   "; make room in XDG_RUNTIME_DIR, TMPDIR, /tmp or /var/tmp of the node")));
}

void WorkerLogs::WhenAllDelivered(loop::Task task) { feed_.WhenAllDelivered(std::move(task)); }

void WorkerLogs::OnUnreadable(uint32_t rank, const absl::Status& why) {
  if (closed_) return;  // nothing is said any more
  launcher_.Warn(absl::StrCat("the output of rank ", rank, " waits: ", std::string(why.message()),
                              "; nothing is lost if it can be read again"));
}

}  // namespace dtrain::shepherd
