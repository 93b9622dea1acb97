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

}  // namespace

void Offspring::Terminate(bool in_containers) {
  terminated_ = loop_.Now();
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

void Offspring::TellKilledWorkers() {
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
      if (files.size() == kMostFiles) break;
      if (info.group != worker->pid()) continue;
      for (const std::string& file : os::FilesBeingWritten(info.pid, kMostFiles)) {
        std::string name = Escape(file, 256);
        const bool known = std::find(files.begin(), files.end(), name) != files.end();
        if (!known && files.size() < kMostFiles) files.push_back(std::move(name));
      }
    }
  }
  if (names.empty()) return;
  const bool one = names.size() + more == 1;
  launcher_.Warn(absl::StrCat(
      "killed ", absl::StrJoin(names, "; "), more > 0 ? absl::StrCat(" and ", more, " more") : "",
      ", which ", one ? "had" : "had all", " not ended ", Seconds(loop_.Now() - terminated_),
      " after SIGTERM",
      files.empty() ? "" : absl::StrCat(" and had open for writing: ", absl::StrJoin(files, ", ")),
      "; --grace gives more time"));
}

void Offspring::TellKilledRest() {
  const std::vector<pid_t> rest = PidsOf(sweeper_.Left());
  if (rest.empty()) return;
  launcher_.Warn(absl::StrCat("killed what the ranks here had left running: ", NamesOf(rest), ", ",
                              Seconds(loop_.Now() - begun_),
                              " after the last of them had ended; --grace gives more time"));
}

}  // namespace dtrain::shepherd
