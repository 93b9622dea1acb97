// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/job_cgroup.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace dtrain::shepherd {
namespace {

// As dtrain-spawner makes it.
constexpr char kWorkersCgroup[] = "workers";

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

void JobCgroup::Make() {
  oom_kills_.emplace();
  auto cgroup = Create();
  if (!cgroup.ok()) return Lose(cgroup.status());
  cgroup_ = *std::move(cgroup);
  sweeper_.set_cgroup(*cgroup_);
  auto directory = cgroup_->Open();
  if (!directory.ok()) return Lose(directory.status());
  directory_ = *std::move(directory);
}

void JobCgroup::Lose(const absl::Status& why) {
  directory_.Reset();
  cgroup_.reset();
  sweeper_.RemoveCgroup();
  why_not_ = absl::StrCat("workers get no cgroup of their own (", std::string(why.message()), ")");
  if (part_.require_cgroup()) return;
  launcher_.Warn(
      absl::StrCat(why_not_, "; their process groups and descendants are tracked instead"),
      /*detail=*/true);
}

void JobCgroup::ExplainKill(v1::WorkerExit& exit) {
  if (!oom_kills_ || oom_kills_->Read() <= oom_kills_told_) return;
  ++oom_kills_told_;
  exit.set_out_of_memory(true);
  exit.set_memory_limit_bytes(oom_kills_->LimitBytes());
}

}  // namespace dtrain::shepherd
