// SPDX-License-Identifier: Apache-2.0
#include "launcher/story/care.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/text.h"
#include "launcher/detached/ourselves.h"
#include "launcher/detached/start.h"
#include "launcher/detached/supervisor.h"
#include "launcher/story/find.h"
#include "launcher/story/story.h"

namespace dtrain::story {
namespace {

// A launcher reads the journal before it has the job.
constexpr Duration kStartPatience = std::chrono::seconds(20);
constexpr Duration kBetweenLooks = std::chrono::seconds(1);
// One that cannot go on is not started again and again.
constexpr Duration kBetweenTries = std::chrono::seconds(10);
constexpr size_t kMostTold = 500;

// The last line of its log.
std::string LastWords(const detached::JobFolder& job) {
  std::ifstream file(job.path() + "/launcher.log", std::ios::binary | std::ios::ate);
  if (!file) return "";
  const auto size = static_cast<int64_t>(file.tellg());
  file.seekg(std::max<int64_t>(size - 4096, 0));
  std::string text(4096, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  const std::vector<absl::string_view> lines = absl::StrSplit(absl::StripSuffix(text, "\n"), '\n');
  return Escape(absl::StripPrefix(lines.back(), "dtrain: "), kMostTold);
}

bool IsHeldOrOver(const detached::JobFolder& job) {
  const auto holder = job.Holder();
  return job.HasSummary() || (holder.ok() && *holder);
}

// A journal that no launcher can use: better said here than in a log.
absl::Status CheckJournal(const detached::JobFolder& job) {
  absl::Status status = job.ReadJournal().status();
  if (!absl::IsDataLoss(status)) return status;
  const auto lock = job.Lock(detached::Ourselves());
  // Another one has just taken it, and will find the same.
  if (!lock.ok()) return status;
  return job.OpenJournal().status();
}

absl::StatusOr<std::string> StartIfNone(const detached::JobFolder& job,
                                        absl::FunctionRef<void()> beat) {
  if (job.HasSummary()) return "";
  const auto holder = job.Holder();
  if (!holder.ok()) return holder.status();
  if (*holder) return "";
  const std::optional<absl::Time> last = LastSign(job);
  if (absl::Status checked = CheckJournal(job); !checked.ok()) return checked;
  const auto wait = [&](detached::LauncherStart& start) {
    const TimePoint deadline = Clock::now() + kStartPatience;
    return start.Wait(detached::Standing::Stage::kHasJob, [&] {
      beat();
      return Clock::now() < deadline;
    });
  };
  if (absl::Status checked = CheckMachine(job); !checked.ok()) {
    // Its supervisor there may be about to start one.
    auto watched = detached::LauncherStart::Watch(job);
    const auto end = wait(watched);
    if (end == detached::LauncherStart::End::kReached || IsHeldOrOver(job)) return "";
    return checked;
  }
  const auto minder = job.Minder();
  const bool is_minded = minder.ok() && *minder;
  const detached::SupervisorFacts facts = detached::ReadSupervisorFacts(job.path());
  const auto supervisor = detached::ChooseSupervisor(facts);
  // One that ends when this user logs out is better than none.
  auto started =
      detached::LauncherStart::Begin(job,
                                     is_minded ? detached::Supervisor::kMinder
                                               : supervisor.value_or(detached::Supervisor::kMinder),
                                     beat);
  if (!started.ok()) return started.status();
  const auto end = wait(*started);
  if (end != detached::LauncherStart::End::kReached && !IsHeldOrOver(job)) {
    const std::string words = LastWords(job);
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", job.id(), " has no launcher, and a new one could not take it over",
        words.empty() ? "" : ": ", words, " (its log is ", job.path(), "/launcher.log)"));
  }
  if (is_minded) return "";  // it was about to start one
  return absl::StrCat(
      job.id(), " had no launcher",
      last ? absl::StrCat(" (since ", ShownTime(absl::ToUnixNanos(*last)), ")") : "",
      ": started a new one",
      supervisor.ok() ? ""
                      : absl::StrCat("; it will not live long: ", supervisor.status().message()));
}

}  // namespace

bool MeansThisMachine(absl::string_view host) {
  return host == "localhost" || host == "::1" || absl::StartsWith(host, "127.");
}

absl::Status CheckMachine(const detached::JobFolder& job) {
  const auto journal = job.ReadJournal();
  // Whoever opens it tells what is wrong with it.
  if (!journal.ok()) return absl::OkStatus();
  const v1::JournalState& state = journal->state;
  if (state.phase() != v1::JournalState::PHASE_BEGUN &&
      state.phase() != v1::JournalState::PHASE_RUNS &&
      state.phase() != v1::JournalState::PHASE_RESTARTING) {
    return absl::OkStatus();
  }
  const auto& hosts = state.attempt().hosts();
  if (std::none_of(hosts.begin(), hosts.end(), MeansThisMachine)) return absl::OkStatus();
  // There its last launcher ran. A machine that was rebooted has kept its name.
  const v1::Launcher& there = state.launcher();
  const v1::Launcher here = detached::Ourselves();
  if (there.host().empty() || there.host() == here.host() || there.boot_id() == here.boot_id()) {
    return absl::OkStatus();
  }
  const std::string host = Escape(there.host());
  return absl::FailedPreconditionError(
      absl::StrCat("the workers of ", job.id(), " run on ", host,
                   " itself (localhost): run `dtrain attach ", job.id(), "` there; if ", host,
                   " is gone for good, `dtrain rm --force ", job.id(), "` removes the job"));
}

absl::StatusOr<std::string> EnsureLauncher(const detached::JobFolder& job,
                                           absl::FunctionRef<void()> beat) {
  auto note = StartIfNone(job, beat);
  // Moved to lost+found just now.
  if (note.ok() || absl::IsDataLoss(note.status())) return note;
  // Meanwhile it may have ended, and settled, or been removed.
  if (job.HasSummary()) return "";
  const absl::Status there = CheckThere(job);
  return absl::IsNotFound(there) ? there : note;
}

absl::StatusOr<std::string> Care::Look(TimePoint now, absl::FunctionRef<void()> beat) {
  if (now < next_look_) return "";
  next_look_ = now + kBetweenLooks;
  if (IsHeldOrOver(job_) || now < next_try_) return "";
  next_try_ = now + kBetweenTries;
  return EnsureLauncher(job_, beat);
}

}  // namespace dtrain::story
