// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/offspring.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/shepherd/who_acts.h"
#include "common/base/text.h"
#include "common/os/pidfd.h"
#include "common/os/process_facts.h"
#include "common/os/process_tree.h"

namespace dtrain::shepherd {
namespace {

constexpr Duration kFirstLookAfter = std::chrono::milliseconds(2);
constexpr Duration kLongestLookAfter = std::chrono::milliseconds(100);
// Nobody wants to read of a helper that is about to end.
constexpr Duration kHelperSilence = std::chrono::seconds(2);
// Nor of a rank that saves for a moment; of one that goes on, now and again.
constexpr Duration kWaitingSilence = std::chrono::seconds(5);
constexpr Duration kTellWaitingAgain = std::chrono::seconds(30);
constexpr size_t kMostKinNamed = 4;
constexpr size_t kMostFiles = 2;

std::string NameOf(pid_t pid) {
  return absl::StrCat(Escape(os::CommandName(pid), 32), " (pid ", pid, ")");
}

// "a (pid 1), b (pid 2) and 7 more"
std::string NamesOf(const std::vector<pid_t>& pids) {
  std::vector<std::string> names;
  for (size_t i = 0; i < std::min(pids.size(), kMostKinNamed); ++i)
    names.push_back(NameOf(pids[i]));
  std::string out = absl::StrJoin(names, ", ");
  if (pids.size() > kMostKinNamed)
    absl::StrAppend(&out, " and ", pids.size() - kMostKinNamed, " more");
  return out;
}

std::vector<pid_t> PidsOf(const std::vector<os::ProcessInfo>& processes) {
  std::vector<pid_t> pids;
  for (const os::ProcessInfo& info : processes) pids.push_back(info.pid);
  return pids;
}

std::string Seconds(Duration time) {
  return absl::StrCat(std::chrono::round<std::chrono::seconds>(time).count(), " s");
}

// Adds what a process has open for writing, up to kMostFiles in all.
void AddFiles(pid_t pid, std::vector<std::string>& files) {
  if (files.size() == kMostFiles) return;
  for (const os::FileBeingWritten& file : os::FilesBeingWritten(pid, kMostFiles)) {
    std::string name = Escape(file.path, 256);
    const bool known = std::find(files.begin(), files.end(), name) != files.end();
    if (!known && files.size() < kMostFiles) files.push_back(std::move(name));
  }
}

// "/ckpt/a.pt (212 MB in the last 5 s), as 2 more do"; empty: nothing is written.
std::string Written(const std::vector<SaveWatch::Save>& saves) {
  if (saves.empty()) return "";
  const auto& most = *std::max_element(
      saves.begin(), saves.end(), [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
  return absl::StrCat(most.file.empty() ? "files" : Escape(most.file, 256), " (",
                      most.bytes / 1000000, " MB in the last ", Seconds(SaveWatch::kWindow), ")",
                      saves.size() > 1 ? absl::StrCat(", as ", saves.size() - 1, " more do") : "");
}

}  // namespace

void Offspring::Terminate(bool in_containers) {
  terminated_ = loop_.Now();
  tell_waiting_at_ = terminated_ + kWaitingSilence;
  const std::vector<os::ProcessInfo> all = os::Descendants(getpid());
  std::vector<Kin> kin;
  for (const os::ProcessInfo& info : all) {
    kin.push_back({info.pid, info.parent, os::Catches(info.pid, SIGTERM), os::IsShell(info.pid)});
  }
  for (const auto& worker : workers_.all()) {
    if (worker->ended()) continue;
    std::vector<pid_t> acting;
    if (!in_containers) acting = WhoActs(worker->pid(), kin);
    std::vector<os::ProcessInfo> told;
    for (const os::ProcessInfo& info : all) {
      const bool acts = std::find(acting.begin(), acting.end(), info.pid) != acting.end();
      if (!acts && (!acting.empty() || info.group != worker->pid())) continue;
      has_term_.insert({info.pid, info.start_time});
      told.push_back(info);
    }
    if (acting.empty()) {
      worker->Signal(SIGTERM);
    } else {
      os::Signal(told, SIGTERM);
    }
  }
  workers_.Signal(SIGCONT);  // a stopped one would not notice
}

void Offspring::AwaitEnd(TimePoint limit, loop::Task none) {
  none_ = std::move(none);
  limit_ = limit;
  begun_ = loop_.Now();
  tell_waiting_at_ = begun_ + kWaitingSilence;
  pause_ = kFirstLookAfter;
  Look();
}

void Offspring::OnReaped() {
  // Of many that end one after the other, the last one counts; the timer sees to the others.
  if (none_ && !os::HasChildren()) Look();
}

void Offspring::Look() {
  if (sweeper_.NothingLeft()) {
    loop::Task none = std::exchange(none_, nullptr);
    Stop();
    return none();
  }
  const TimePoint now = loop_.Now();
  if (!told_ && now - begun_ >= kHelperSilence && limit_ - now >= kHelperSilence) {
    told_ = true;
    launcher_.Warn(absl::StrCat(
        "waiting for what the ranks here have left running: ", NamesOf(PidsOf(sweeper_.Left())),
        "; it gets SIGTERM in ", Seconds(limit_ - now),
        " (--grace), or now with Ctrl-C or dtrain stop"));
  }
  timer_.After(pause_, [this] { Look(); });
  pause_ = std::min(pause_ * 2, kLongestLookAfter);
}

void Offspring::TerminateRest() {
  std::vector<os::ProcessInfo> rest = sweeper_.Left();
  std::erase_if(rest, [this](const os::ProcessInfo& info) {
    return !has_term_.insert({info.pid, info.start_time}).second;
  });
  os::Signal(rest, SIGTERM);
  os::Signal(rest, SIGCONT);
  told_ = true;
}

void Offspring::Stop() {
  none_ = nullptr;
  timer_.Cancel();
}

void Offspring::TellWaiting(const std::vector<SaveWatch::Save>& saves, TimePoint kill_at,
                            TimePoint limit, bool cancelled) {
  const TimePoint now = loop_.Now();
  if (now < tell_waiting_at_) return;
  std::vector<std::string> names;
  size_t living = 0;
  for (const auto& worker : workers_.all()) {
    if (worker->ended()) continue;
    if (++living > kMostKinNamed) continue;
    names.push_back(absl::StrCat("rank ", worker->rank(), ", ", NameOf(worker->pid())));
  }
  // For helpers that write nothing Look has spoken.
  if (living == 0 && saves.empty()) return;
  tell_waiting_at_ = now + kTellWaitingAgain;
  std::string who;
  if (living > 0) {
    who = absl::StrJoin(names, "; ");
    if (living > kMostKinNamed) absl::StrAppend(&who, " and ", living - kMostKinNamed, " more");
    absl::StrAppend(&who, ", which ", living == 1 ? "has" : "have", " not ended ",
                    Seconds(now - terminated_), " after SIGTERM");
  } else {
    std::vector<pid_t> pids;
    for (const SaveWatch::Save& save : saves) pids.push_back(save.pid);
    who = absl::StrCat("what the ranks here have left running: ", NamesOf(pids));
  }
  const std::string written = Written(saves);
  if (written.empty() && kill_at - now < kHelperSilence) return;
  launcher_.Warn(absl::StrCat(
      "waiting for ", who,
      written.empty()
          ? ""
          : absl::StrCat(living > 0 ? " and still writes " : ", which still writes ", written),
      "; KILL follows in ", Seconds((written.empty() ? kill_at : limit) - now),
      written.empty() ? " (--grace)" : " at the latest (--grace-limit)",
      cancelled ? "; Ctrl-C or dtrain stop again kills it now"
                : "; Ctrl-C or dtrain stop twice kills it now"));
}

void Offspring::TellKilledWorkers(absl::string_view flag) {
  const std::vector<os::ProcessInfo> all = os::Descendants(getpid());
  std::vector<std::string> names;
  std::vector<std::string> files;
  size_t more = 0;
  for (const auto& worker : workers_.all()) {
    if (worker->ended()) continue;
    if (names.size() == kMostKinNamed) {
      ++more;
      continue;
    }
    names.push_back(absl::StrCat("rank ", worker->rank(), ", ", NameOf(worker->pid())));
    for (const os::ProcessInfo& info : all) {
      if (info.group == worker->pid()) AddFiles(info.pid, files);
    }
  }
  if (names.empty()) return;
  const bool one = names.size() + more == 1;
  launcher_.Warn(absl::StrCat(
      "killed ", absl::StrJoin(names, "; "), more > 0 ? absl::StrCat(" and ", more, " more") : "",
      ", which ", one ? "had" : "had all", " not ended ", Seconds(loop_.Now() - terminated_),
      " after SIGTERM",
      files.empty() ? "" : absl::StrCat(" and had open for writing: ", absl::StrJoin(files, ", ")),
      "; ", flag, " gives more time"));
}

void Offspring::TellKilledRest(absl::string_view flag) {
  const std::vector<os::ProcessInfo> rest = sweeper_.Left();
  if (rest.empty()) return;
  std::vector<std::string> names;
  std::vector<std::string> files;
  for (const os::ProcessInfo& info : rest) {
    AddFiles(info.pid, files);
    if (names.size() == kMostKinNamed) continue;
    names.push_back(NameOf(info.pid));
    for (const auto& worker : workers_.all()) {
      // The group outlives its leader.
      if (worker->pid() != info.group) continue;
      absl::StrAppend(&names.back(), " of rank ", worker->rank());
      break;
    }
  }
  const size_t more = rest.size() - names.size();
  launcher_.Warn(absl::StrCat(
      "killed what the ranks here had left running: ", absl::StrJoin(names, ", "),
      more > 0 ? absl::StrCat(" and ", more, " more") : "", ", ", Seconds(loop_.Now() - begun_),
      " after the last of them had ended",
      files.empty() ? "" : absl::StrCat("; open for writing: ", absl::StrJoin(files, ", ")), "; ",
      flag, " gives more time"));
}

}  // namespace dtrain::shepherd
