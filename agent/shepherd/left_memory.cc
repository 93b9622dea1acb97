// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/left_memory.h"

#include <sys/inotify.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/text.h"
#include "common/os/process_tree.h"

namespace dtrain::shepherd {
namespace {

// A maker has its object open for a while. Data loaders make many, and remove them at once.
constexpr Duration kSoonest = std::chrono::milliseconds(50);
constexpr Duration kLatest = std::chrono::seconds(5);
// What was found to be another's is looked at again so often.
constexpr Duration kAgain = std::chrono::seconds(1);
// Looking may take 1 % of a core.
constexpr int kRest = 100;

}  // namespace

LeftMemory::LeftMemory(loop::Loop& loop, const Sweeper& sweeper, LauncherLine& launcher)
    : loop_(loop),
      sweeper_(sweeper),
      launcher_(launcher),
      record_(os::ProcessMark(getpid())),
      timer_(loop) {}

void LeftMemory::Begin() {
  begun_ = true;
  // First, so that nothing is missed. Without it objects are only seen when processes are killed.
  changes_.Reset(inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  if (changes_ && inotify_add_watch(changes_.get(), os::kSharedMemoryFolder,
                                    IN_CREATE | IN_MOVED_TO | IN_ONLYDIR) >= 0) {
    watch_.emplace(loop_, changes_.get());
    Watch();
  }
  for (const os::NamedSharedMemory& each : os::ListSharedMemory(geteuid())) {
    before_.insert(each.object);
  }
}

void LeftMemory::Watch() {
  watch_->OnReadable([this] { LookSoon(); });
}

void LeftMemory::LookSoon() {
  timer_.After(kSoonest, [this] {
    char events[4096];
    while (read(changes_.get(), events, sizeof(events)) > 0) {
    }
    const TimePoint begin = loop_.Now();
    const bool is_done = Look();
    const Duration took = std::chrono::steady_clock::now() - begin;
    timer_.After(std::min<Duration>(took * kRest, kLatest),
                 [this, is_done] { is_done ? Watch() : LookSoon(); });
  });
}

bool LeftMemory::Look() {
  std::vector<os::NamedSharedMemory> fresh = os::ListSharedMemory(geteuid());
  std::erase_if(fresh, [this](const os::NamedSharedMemory& each) {
    return before_.contains(each.object) || ours_.contains(each.object) ||
           others_.contains(each.object);
  });
  if (fresh.empty()) return true;
  os::HeldSharedMemory theirs;
  std::set<pid_t> pids;
  for (const os::ProcessInfo& info : sweeper_.Left()) {
    os::HeldSharedMemory its = os::SharedMemoryOf(info.pid);
    theirs.mapped.merge(its.mapped);
    theirs.open.merge(its.open);
    pids.insert(info.pid);
  }
  const size_t known = ours_.size();
  bool is_done = true;
  for (const os::NamedSharedMemory& each : fresh) {
    const bool is_ours =
        each.object.is_segment ? pids.contains(each.maker) : theirs.mapped.contains(each.object);
    const bool is_open = theirs.open.contains(each.object);
    if (is_open) files_.insert(each.object);
    if (is_ours) {
      ours_.insert(each.object);
    } else if (is_open) {
      is_done = false;
    } else {
      others_.insert(each.object);
    }
  }
  if (ours_.size() != known) record_.Write(ours_);
  return is_done;
}

void LeftMemory::OnKill() {
  if (!begun_) return;
  killed_ = true;
  // A process of the job may have them by now. Many may die at once.
  const TimePoint now = loop_.Now();
  if (now >= again_at_) others_.clear();
  if (now >= again_at_) again_at_ = now + kAgain;
  (void)Look();
}

bool LeftMemory::HasClaim(const os::SharedMemory& object) const {
  return std::any_of(records_.begin(), records_.end(), [&](const auto& record) {
    return record.lives && record.objects.contains(object);
  });
}

void LeftMemory::End() {
  if (!std::exchange(begun_, false)) return;
  watch_.reset();
  timer_.Cancel();
  if (ours_.empty() && files_.empty()) return;
  const uid_t user = geteuid();
  record_.Write({});  // not to be read as another's
  records_ = os::ReadSharedMemoryRecords(user);
  std::vector<os::NamedSharedMemory> removed, left, files;
  std::set<os::SharedMemory> keep;
  for (const os::NamedSharedMemory& each : os::ListSharedMemory(user)) {
    const bool is_ours = ours_.contains(each.object);
    if ((!is_ours && !files_.contains(each.object)) || HasClaim(each.object)) continue;
    if (!is_ours) {
      if (os::UseOf(each, user) == os::SharedMemoryUse::kNobody) files.push_back(each);
      continue;
    }
    const os::SharedMemoryUse use = killed_ ? os::RemoveUnused(each, user) : os::UseOf(each, user);
    if (use == os::SharedMemoryUse::kGone) continue;
    if (use == os::SharedMemoryUse::kNobody) (killed_ ? removed : left).push_back(each);
    if (use == os::SharedMemoryUse::kSomebody || !killed_) keep.insert(each.object);
  }
  record_.Write(keep);
  if (!removed.empty()) {
    launcher_.Warn(absl::StrCat("removed from /dev/shm what killed processes of the job had left: ",
                                os::Describe(removed)));
  }
  if (!left.empty()) {
    launcher_.Warn(absl::StrCat("left in /dev/shm: ", os::Describe(left),
                                ", nobody uses them; dtrain-agent reap removes them"));
  }
  if (!files.empty()) {
    launcher_.Warn(absl::StrCat("left in /dev/shm: ", os::Describe(files),
                                ", which ranks had open as files (", Escape(files.front().name, 64),
                                files.size() > 1 ? ", ..." : "",
                                "); dtrain does not remove files"));
  }
}

}  // namespace dtrain::shepherd
