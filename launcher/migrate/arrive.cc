// SPDX-License-Identifier: Apache-2.0
#include "launcher/migrate/arrive.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/exit_code.h"
#include "common/base/text.h"
#include "common/os/fd.h"
#include "dtrain/v1/migration.pb.h"
#include "launcher/cli/options.h"
#include "launcher/cli/recorded.h"
#include "launcher/detached/baggage.h"
#include "launcher/detached/jobs.h"
#include "launcher/detached/launcher_log.h"
#include "launcher/detached/leave.h"
#include "launcher/detached/ourselves.h"
#include "launcher/detached/start.h"
#include "launcher/detached/supervisor.h"
#include "launcher/journal/records.h"
#include "launcher/migrate/wire.h"
#include "launcher/nodes/agents.h"
#include "launcher/story/find.h"

namespace dtrain::migrate {
namespace {

// Between two messages of the other end.
constexpr Duration kPatience = std::chrono::minutes(2);
constexpr Duration kWritePatience = std::chrono::seconds(10);
// To have the job in hand. It has no launcher meanwhile.
constexpr std::chrono::seconds kTakePatience(10);
constexpr Duration kLeavePatience = std::chrono::seconds(10);
// A file server that fails over takes some seconds.
constexpr std::chrono::seconds kFolderAnswers(10);

// The account that the launch names for this host; empty: none, or a certificate says it.
std::string AccountOn(const hosts::HostList& list, const std::string& host) {
  for (const hosts::HostEntry& entry : list.entries) {
    if (entry.host == host && entry.way != hosts::Way::kTcp) return entry.user;
  }
  return "";
}

// From here, and as the launcher will reach them.
absl::Status CheckNodes(const v1::MigrationOffer& offer) {
  const cli::Surroundings then = cli::SurroundingsOf(offer.spec());
  const std::vector<std::string> words(offer.spec().argv().begin(), offer.spec().argv().end());
  auto command = cli::ParseLaunch(words, then);
  if (!command.ok()) return command.status();
  cli::LaunchOptions& launch = command->launch;
  if (absl::Status loaded = cli::LoadHosts(launch, then); !loaded.ok()) return loaded;
  const std::set<std::string> wanted(offer.hosts().begin(), offer.hosts().end());
  std::erase_if(launch.hosts.entries,
                [&](const hosts::HostEntry& entry) { return !wanted.contains(entry.host); });
  if (launch.hosts.entries.empty()) return absl::OkStatus();  // nothing of it runs
  const auto agents = nodes::Agents::Make(launch.hosts, launch.transport);
  if (!agents.ok()) return agents.status();
  const auto reports = (*agents)->AskAll();
  std::vector<std::string> missing;
  for (size_t i = 0; i < reports.size(); ++i) {
    const std::string& host = (*agents)->host(i);
    if (!reports[i].ok()) {
      missing.push_back(absl::StrCat(host, ": ", Escape(reports[i].status().message(), 500)));
    } else if (nodes::Agents::IsResident(*reports[i]) &&
               !HasOwnJob(*reports[i], offer.spec().job_id(), AccountOn(launch.hosts, host))) {
      missing.push_back(absl::StrCat(host, ": its agent does not have the job"));
    }
  }
  if (missing.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the job's hosts cannot be reached from there: ", absl::StrJoin(missing, "; ")));
}

class Arrival {
 public:
  explicit Arrival(Wire& wire) : wire_(wire) {}

  absl::Status Run() {
    absl::Status status = wire_.SendHello(In(kWritePatience));
    if (status.ok()) status = TakeOffer();
    if (!status.ok()) return status;
    for (;;) {
      v1::ToDestination message;
      status = wire_.Receive(message, In(kPatience));
      if (!status.ok()) return status;
      if (message.has_take()) return Take();
      if (!message.has_piece() || !incoming_) {
        return absl::InvalidArgumentError("unexpected message from the other end");
      }
      const v1::FolderPiece& piece = message.piece();
      status = incoming_->Write(piece.name(), piece.offset(), piece.bytes());
      if (!status.ok()) return status;
    }
  }

 private:
  absl::Status Send(const v1::ToSource& message) { return wire_.Send(message, In(kWritePatience)); }

  absl::Status TakeOffer() {
    v1::ToDestination message;
    if (absl::Status status = wire_.Receive(message, In(kPatience)); !status.ok()) return status;
    if (!message.has_offer()) {
      return absl::InvalidArgumentError("unexpected message from the other end");
    }
    offer_ = std::move(*message.mutable_offer());
    if (offer_.journal_version() > journal::kVersion) {
      return absl::FailedPreconditionError(
          "the dtrain there is too old to read the job's journal: upgrade it");
    }
    // Nobody here reads that we wait, and the other end does not wait for ever.
    auto place = story::PlaceThatAnswers(kFolderAnswers);
    if (!place.ok()) return place.status();
    jobs_.emplace(*std::move(place));
    auto supervisor = detached::ChooseSupervisor(detached::ReadSupervisorFacts(jobs_->place()));
    if (!supervisor.ok()) return supervisor.status();
    supervisor_ = *supervisor;
    absl::Status fits = CheckFolder();
    if (fits.ok()) fits = CheckNodes(offer_);
    if (!fits.ok()) return fits;
    v1::ToSource answer;
    answer.mutable_answer()->set_host(detached::Ourselves().host());
    answer.mutable_answer()->set_shares_folder(shared_.has_value());
    return Send(answer);
  }

  absl::Status CheckFolder() {
    if (absl::Status safe = jobs_->Check(); !safe.ok()) return safe;
    const auto there = jobs_->Find(offer_.spec().job_id());
    if (there.ok() && there->id() == offer_.spec().job_id() &&
        detached::IsSameProcess(there->LastStanding().launcher, offer_.launcher())) {
      shared_ = *there;
      return absl::OkStatus();
    }
    absl::Status fits = jobs_->CheckNew(offer_.spec());
    if (fits.ok()) fits = jobs_->Prepare();
    if (!fits.ok()) return fits;
    auto incoming = detached::IncomingJob::Begin(jobs_->place(), offer_.spec().job_id());
    if (!incoming.ok()) return incoming.status();
    incoming_.emplace(*std::move(incoming));
    return absl::OkStatus();
  }

  absl::Status Take() {
    auto folder = Accept();
    if (!folder.ok()) return folder.status();
    v1::ToSource arrived;
    arrived.mutable_says();
    Send(arrived).IgnoreError();
    absl::Status taken = Start(*folder);
    if (taken.ok()) return taken;
    // Before the other end does anything: of two launchers one would be in the way.
    absl::Status left = detached::HaveLauncherLeave(*folder, In(kLeavePatience));
    if (left.ok() && !shared_) left = Remove(*folder);
    if (left.ok()) return taken;
    return absl::Status(taken.code(), absl::StrCat(taken.message(), "; ", folder->path(),
                                                   " is left there: ", left.message()));
  }

  absl::Status Remove(const detached::JobFolder& folder) {
    auto lock = folder.Lock(detached::Ourselves());
    return lock.ok() ? jobs_->Discard(folder, *std::move(lock)) : lock.status();
  }

  absl::StatusOr<detached::JobFolder> Accept() {
    if (shared_) return *shared_;
    auto accepted = jobs_->Accept(offer_.spec(), [&](const detached::JobFolder& draft) {
      absl::Status moved = incoming_->MoveInto(draft);
      return moved.ok() ? CheckJournal(draft) : moved;
    });
    if (!accepted.ok()) return accepted.status();
    if (accepted->was_there) {
      return absl::AlreadyExistsError(
          absl::StrCat("there is a job ", offer_.spec().job_id(), " now"));
    }
    return accepted->folder;
  }

  // With another one the job would be begun anew.
  absl::Status CheckJournal(const detached::JobFolder& draft) const {
    const auto journal = draft.ReadJournal();
    if (!journal.ok()) return journal.status();
    const auto due =
        offer_.is_new() ? v1::JournalState::PHASE_ACCEPTED : v1::JournalState::PHASE_RUNS;
    if (journal->state.phase() == due && journal->header.job_id() == offer_.spec().job_id()) {
      return absl::OkStatus();
    }
    return absl::DataLossError("the job's journal has not arrived as it should");
  }

  absl::Status Start(const detached::JobFolder& folder) {
    detached::LauncherLog log(folder);
    auto start = detached::LauncherStart::Begin(folder, supervisor_);
    if (!start.ok()) return start.status();
    // What runs must not be without a launcher for long; what starts takes as long as it takes.
    const TimePoint deadline = offer_.is_new() ? TimePoint::max() : In(kTakePatience);
    bool heard = true;
    const auto relay = [&](bool rest) {
      v1::ToSource says;
      says.mutable_says()->set_text(log.Next(rest));
      if (!says.says().text().empty()) heard = heard && Send(says).ok();
    };
    const auto end = start->Wait(
        offer_.no_wait() ? detached::Standing::Stage::kHasJob : detached::Standing::Stage::kRuns,
        [&] {
          relay(false);
          return Clock::now() < deadline && (heard || !offer_.is_new());
        });
    relay(true);
    v1::ToSource taken;
    if (folder.HasSummary()) {
      taken.mutable_taken()->set_ended(true);
      const auto entry = folder.Entry();
      taken.mutable_taken()->set_exit_code(entry.ok() ? entry->exit_code() : -1);
    } else if (end == detached::LauncherStart::End::kOver) {
      return absl::UnavailableError(offer_.is_new()
                                        ? "the launcher ended before the job's workers ran"
                                        : "the new launcher has not taken the job over");
    } else if (end == detached::LauncherStart::End::kGivenUp && !offer_.is_new()) {
      return absl::UnavailableError(
          absl::StrCat("the new launcher has not taken the job over within ",
                       absl::FormatDuration(absl::FromChrono(kTakePatience))));
    }
    const detached::Standing standing = folder.LastStanding();
    if (!folder.HasSummary() && !offer_.is_new() && !detached::IsHere(standing.launcher)) {
      return absl::UnavailableError(
          absl::StrCat("a launcher on ", Escape(standing.launcher.host()), " was faster"));
    }
    const detached::Supervision by = detached::SupervisionOf(folder);
    taken.mutable_taken()->set_supervisor(by.IsThere() ? by.Text() : "");
    // The other end may have gone: the job is more important.
    Send(taken).IgnoreError();
    return absl::OkStatus();
  }

  Wire& wire_;
  v1::MigrationOffer offer_;
  std::optional<detached::Jobs> jobs_;
  detached::Supervisor supervisor_ = detached::Supervisor::kMinder;
  std::optional<detached::JobFolder> shared_;
  std::optional<detached::IncomingJob> incoming_;
};

}  // namespace

bool HasOwnJob(const v1::NodeReport& report, const std::string& id, const std::string& account) {
  return std::any_of(report.jobs().begin(), report.jobs().end(), [&](const v1::JobOnNode& job) {
    return job.job_id() == id && !job.in_name() && (account.empty() || job.owner() == account);
  });
}

int Arrive() {
  // The other end may go at any time.
  signal(SIGPIPE, SIG_IGN);
  signal(SIGHUP, SIG_IGN);
  // One that takes nothing would hold us.
  (void)os::SetNonBlocking(STDIN_FILENO, true);
  (void)os::SetNonBlocking(STDOUT_FILENO, true);
  Wire wire(STDIN_FILENO, STDOUT_FILENO, nullptr);
  absl::Status status = Arrival(wire).Run();
  if (status.ok()) return kExitOk;
  v1::ToSource refused;
  refused.mutable_refused()->set_why(Escape(status.message(), 4000));
  wire.Send(refused, In(kWritePatience)).IgnoreError();
  return 1;
}

}  // namespace dtrain::migrate
