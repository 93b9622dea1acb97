// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "agent/session/gpu_errors.h"
#include "agent/session/session_events.h"
#include "agent/session/shepherd_channel.h"
#include "agent/session/surroundings.h"
#include "common/base/clock.h"
#include "dtrain/v1/session.pb.h"

namespace dtrain::session {

// The GPUs of a session's job: watched while it has them, looked at when its workers have ended.
// Loop thread.
class JobGpus {
 public:
  struct Handlers {
    absl::AnyInvocable<void(v1::SessionEvent)> on_errors;  // all of theirs, when there is a new one
    absl::AnyInvocable<void(const v1::GpuStates&)> on_sample;
    absl::AnyInvocable<void(GpusSeen)> on_seen;  // once after each Look; may destroy this
  };

  JobGpus(const Surroundings& agent, ShepherdChannel& shepherd, Handlers handlers);
  ~JobGpus() { *alive_ = false; }
  JobGpus(const JobGpus&) = delete;
  JobGpus& operator=(const JobGpus&) = delete;

  // What they had counted then is not the job's.
  void Before(const std::vector<v1::Gpu>& gpus) { errors_.Before(gpus); }
  // These are the job's, by its shepherd's word. The first time that there are any.
  void Watch(const std::set<std::string>& uuids);
  void Look();
  // They are not the job's any more, looked at or not.
  void OnGivenBack();
  // Absent: none was ever seen.
  std::optional<v1::SessionEvent> errors() const;

 private:
  void OnLooked(inventory::GpuReport report);
  void SayErrors();

  const Surroundings& agent_;
  ShepherdChannel& shepherd_;
  // One of them that destroys this still runs to its end.
  const std::shared_ptr<Handlers> handlers_;
  GpuErrors errors_;
  std::set<std::string> uuids_;
  std::unique_ptr<inventory::GpuWatches::Watch> watch_;
  TimePoint looking_since_ = kNever;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dtrain::session
