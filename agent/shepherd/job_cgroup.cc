// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/job_cgroup.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/shepherd/failure.h"
#include "common/base/exit_code.h"

namespace dtrain::shepherd {
namespace {

// As dtrain-spawner makes it.
constexpr char kWorkersCgroup[] = "workers";

std::string NoCgroup(const absl::Status& why) {
  return absl::StrCat("workers get no cgroup of their own (", absl::string_view(why.message()),
                      ")");
}

}  // namespace

JobCgroup::JobCgroup(const v1::JobPart& part, bool is_prepared, Sweeper& sweeper,
                     LauncherLine& launcher)
    : part_(part), is_prepared_(is_prepared), sweeper_(sweeper), launcher_(launcher) {}

absl::StatusOr<os::Cgroup> JobCgroup::Create() const {
  auto parent = is_prepared_ ? os::FindWritableSibling(kWorkersCgroup) : os::FindWritableCgroup();
  if (!parent.ok()) return parent.status();
  const std::string name = os::JobCgroupName(part_.job_id(), part_.attempt(), part_.node_rank());
  auto made = os::Cgroup::Make(*parent, name);
  if (!absl::IsAlreadyExists(made.status())) return made;
  // Of a shepherd of this very job that was killed.
  const os::Cgroup stale(absl::StrCat(*parent, "/", name));
  stale.Kill();
  (void)stale.Remove();
  return os::Cgroup::Make(*parent, name);
}

absl::Status JobCgroup::Open() {
  auto cgroup = Create();
  if (!cgroup.ok()) return cgroup.status();
  cgroup_ = *std::move(cgroup);
  sweeper_.set_cgroup(*cgroup_);
  auto directory = cgroup_->Open();
  if (!directory.ok()) return directory.status();
  directory_ = *std::move(directory);
  return absl::OkStatus();
}

std::optional<v1::NodeFailure> JobCgroup::Make() {
  oom_kills_.emplace();
  const absl::Status opened = Open();
  if (opened.ok()) return std::nullopt;
  Lose(opened);
  if (!part_.require_cgroup()) return std::nullopt;
  return MakeFailure(v1::NodeFailure::KIND_RESOURCES, kExitStartAgents,
                     absl::StrCat("--require-cgroup: ", NoCgroup(opened)));
}

void JobCgroup::Lose(const absl::Status& why) {
  directory_.Reset();
  cgroup_.reset();
  sweeper_.RemoveCgroup();
  if (part_.require_cgroup()) return;
  launcher_.Warn(
      absl::StrCat(NoCgroup(why), "; their process groups and descendants are tracked instead"),
      /*detail=*/true);
}

void JobCgroup::ExplainKill(v1::WorkerExit& exit) {
  if (!oom_kills_ || oom_kills_->Read() <= oom_kills_told_) return;
  ++oom_kills_told_;
  exit.set_out_of_memory(true);
  exit.set_memory_limit_bytes(oom_kills_->LimitBytes());
}

}  // namespace dtrain::shepherd
