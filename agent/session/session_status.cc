// SPDX-License-Identifier: Apache-2.0
// What a session tells to others than its launcher, and does for them.
#include <utility>

#include "agent/session/session.h"

namespace dtrain::session {

v1::JobOnNode Session::Describe() const {
  v1::JobOnNode job = status_.View(core_.state(), core_.away());
  job.set_job_id(core_.hello().job_id());
  job.set_attempt(core_.hello().attempt());
  job.set_owner(owner_.name);
  job.set_uid(owner_.uid);
  job.set_since_unix_nanos(since_unix_nanos_);
  for (v1::RankOnNode& rank : *job.mutable_ranks()) {
    rank.set_stdout_bytes(relay_.size(rank.rank(), v1::STREAM_KIND_STDOUT));
    rank.set_stderr_bytes(relay_.size(rank.rank(), v1::STREAM_KIND_STDERR));
  }
  return job;
}

bool Session::StopBy(std::string message) {
  const bool runs = core_.state() <= SessionCore::State::kRunning;
  Feed(StopAsked{std::move(message)});
  return runs;
}

}  // namespace dtrain::session
