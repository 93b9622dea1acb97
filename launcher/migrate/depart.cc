// SPDX-License-Identifier: Apache-2.0
#include "launcher/migrate/depart.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "common/base/safe_json.h"
#include "common/base/text.h"
#include "common/os/file_lock.h"
#include "common/os/signals.h"
#include "dtrain/v1/migration.pb.h"
#include "launcher/detached/baggage.h"
#include "launcher/detached/leave.h"
#include "launcher/detached/ourselves.h"
#include "launcher/detached/start.h"
#include "launcher/detached/supervisor.h"
#include "launcher/journal/records.h"
#include "launcher/migrate/ssh.h"
#include "launcher/migrate/wire.h"
#include "launcher/story/care.h"

namespace dtrain::migrate {
namespace {

// The other end asks the job's hosts before it answers.
constexpr Duration kAnswerPatience = std::chrono::minutes(2);
constexpr Duration kSendPatience = std::chrono::minutes(1);
constexpr Duration kLetGoPatience = std::chrono::seconds(20);
// It ends a launcher that cannot take the job, before it says so.
constexpr Duration kTakenPatience = std::chrono::seconds(45);
constexpr Duration kBackPatience = std::chrono::seconds(30);
constexpr size_t kPieceBytes = 256 << 10;
// What came while the output was copied is copied again, until it is little or this often. The job
// has no launcher while the rest goes.
constexpr uint64_t kLittle = 4 << 20;
constexpr int kMostPasses = 5;
constexpr Duration kRestPatience = std::chrono::seconds(10);

volatile sig_atomic_t interrupted = 0;
void OnInterrupt(int signal) { interrupted = signal; }

class Departure {
 public:
  Departure(const detached::Jobs& jobs, const detached::JobFolder& job, const Options& options)
      : jobs_(jobs), job_(job), options_(options) {}

  absl::Status Move() {
    absl::StatusOr<v1::MigrationOffer> offer = MakeOffer();
    if (offer.ok()) offer = OfRunning(*std::move(offer));
    if (!offer.ok()) return offer.status();
    // Of two at a time, each would have the other's launcher leave.
    const auto moving = os::FileLock::Take(job_.path() + "/moving", "");
    if (absl::IsUnavailable(moving.status())) {
      return absl::FailedPreconditionError(
          absl::StrCat("another `dtrain migrate` is moving ", job_.id(), " now"));
    }
    // A launcher that runs over a full disk is not taken away: the next one could not begin.
    absl::Status status = moving.ok() ? jobs_.Try() : moving.status();
    if (status.ok()) status = Offer(*offer);
    if (!status.ok()) return Stays(status);
    status = detached::HaveLauncherLeave(job_, In(kLetGoPatience));
    if (status.ok()) status = SendRest(v1::JournalState::PHASE_RUNS);
    if (!status.ok()) return Back(status);
    // From here on there is no way back but over the other end's answer.
    status = HaveItTaken();
    const absl::StatusOr<v1::JobTaken> taken =
        status.ok() ? AwaitTaken(In(kTakenPatience)) : status;
    if (!taken.ok()) return Back(taken.status());
    Forget();
    SayWhere(*taken);
    return absl::OkStatus();
  }

  absl::StatusOr<Started> Start(bool no_wait) {
    auto lock = job_.Lock(detached::Ourselves());
    if (!lock.ok()) return lock.status();
    lock_ = *std::move(lock);
    absl::StatusOr<v1::MigrationOffer> offer = MakeOffer();
    if (!offer.ok()) return offer.status();
    offer->set_is_new(true);
    offer->set_no_wait(no_wait);
    absl::Status status = Offer(*offer);
    if (status.ok()) status = SendRest(v1::JournalState::PHASE_ACCEPTED);
    // Before it can be started there: if we are killed now, nobody may start it a second time,
    // here.
    if (!status.ok()) return Unmade(status);
    if (!shared_) status = jobs_.MoveTo(host_, job_, *std::exchange(lock_, std::nullopt));
    lock_.reset();
    if (!status.ok()) return Unmade(status);
    status = HaveItTaken();
    if (status.ok()) status = AwaitArrival();
    wire_->InterruptBy(&interrupted);
    const absl::StatusOr<v1::JobTaken> taken = status.ok() ? AwaitTaken(TimePoint::max()) : status;
    if (absl::IsFailedPrecondition(taken.status())) return Unmade(taken.status());
    Started started;
    started.host = host_;
    if (absl::IsCancelled(taken.status())) {
      started.signal = interrupted;
      return started;
    }
    if (!taken.ok()) {
      return absl::Status(taken.status().code(),
                          absl::StrCat(options_.to.host, ": ", taken.status().message(), "; ",
                                       job_.id(), " may run there: `dtrain ps -a` there lists it"));
    }
    started.supervisor = taken->supervisor();
    if (taken->ended()) started.exit_code = taken->exit_code();
    return started;
  }

 private:
  absl::StatusOr<v1::MigrationOffer> MakeOffer() {
    auto spec = job_.ReadSpec();
    if (!spec.ok()) return spec.status();
    if (job_.HasSummary()) {
      return absl::NotFoundError(absl::StrCat(job_.id(), " has ended already"));
    }
    v1::MigrationOffer offer;
    *offer.mutable_spec() = *std::move(spec);
    *offer.mutable_launcher() = job_.LastStanding().launcher;
    offer.set_journal_version(journal::kVersion);
    return offer;
  }

  absl::StatusOr<v1::MigrationOffer> OfRunning(v1::MigrationOffer offer) {
    const auto journal = job_.ReadJournal();
    if (!journal.ok()) return journal.status();
    const v1::JournalState& state = journal->state;
    if (absl::Status runs = CheckPhase(state, v1::JournalState::PHASE_RUNS); !runs.ok()) {
      return runs;
    }
    for (const v1::RunningNode& node : state.runs().nodes()) {
      if (node.node() >= static_cast<uint32_t>(state.attempt().hosts_size())) continue;
      if (IsLost(state, node)) continue;
      const std::string& host = state.attempt().hosts(static_cast<int>(node.node()));
      if (story::MeansThisMachine(host)) {
        return absl::InvalidArgumentError(absl::StrCat(
            job_.id(), " has workers on ", host,
            ", which means another machine there: launch such a job with the real names of "
            "its hosts"));
      }
      offer.add_hosts(host);
    }
    return offer;
  }

  static bool IsLost(const v1::JournalState& state, const v1::RunningNode& node) {
    return std::any_of(
        state.nodes().begin(), state.nodes().end(), [&](const v1::NodeJournal& known) {
          return known.node() == node.node() && (known.has_lost() || known.has_finished());
        });
  }

  absl::Status CheckPhase(const v1::JournalState& state, v1::JournalState::Phase phase) const {
    if (state.phase() == phase && !state.has_stop() && !state.has_scale_up()) {
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(
        absl::StrCat(job_.id(), " can move only while its workers run: ",
                     state.phase() >= v1::JournalState::PHASE_CONCLUDED || state.has_stop()
                         ? "it is about to end"
                         : "try again when they do"));
  }

  // Nothing changes here, whatever comes of it. Most of what is to be sent is sent with it.
  absl::Status Offer(const v1::MigrationOffer& offer) {
    CatchSignals();
    absl::Status status = Connect();
    v1::ToDestination message;
    *message.mutable_offer() = offer;
    if (status.ok()) status = Send(message);
    v1::MigrationAnswer answer;
    if (status.ok()) status = ReceiveAnswer(answer);
    if (!status.ok()) return status;
    host_ = answer.host();
    shared_ = answer.shares_folder();
    for (int pass = 0; pass < kMostPasses && !shared_; ++pass) {
      const uint64_t before = bytes_;
      if (absl::Status sent = SendOutput(); !sent.ok()) return sent;
      if (bytes_ - before < kLittle) break;
    }
    return absl::OkStatus();
  }

  void CatchSignals() {
    signal(SIGPIPE, SIG_IGN);
    // `dtrain stop` sends it to whoever has the job.
    signal(detached::JobFolder::StopSignal(), SIG_IGN);
    struct sigaction action {};
    action.sa_handler = OnInterrupt;
    for (const int signal : os::NotIgnored({SIGINT, SIGTERM, SIGHUP})) {
      sigaction(signal, &action, nullptr);
    }
  }

  absl::Status Connect() {
    if (absl::Status started = ssh_.Start(options_); !started.ok()) return started;
    wire_.emplace(ssh_.fd(), ssh_.fd(), &interrupted);
    absl::Status hello = wire_->AwaitHello(In(options_.connect_timeout + kSshSilence));
    if (hello.ok() || !absl::IsUnavailable(hello)) return hello;
    const std::string end = ssh_.End();
    return absl::UnavailableError(
        absl::StrCat("`", ssh_.command(), "` ended before it answered",
                     end.empty() ? "" : absl::StrCat(" (", end, ")"),
                     absl::EndsWith(end, " 127")
                         ? "; if dtrain is installed there, name it with --program /path/to/dtrain"
                         : ""));
  }

  absl::Status Send(const v1::ToDestination& message) {
    const TimePoint deadline = std::min(In(kSendPatience), rest_until_);
    absl::Status sent = wire_->Send(message, deadline);
    if (!absl::IsUnavailable(sent)) return sent;
    // It may have said why.
    v1::ToSource last;
    while (wire_->Receive(last, deadline).ok()) {
      if (last.has_refused()) return Refused(last.refused());
    }
    return sent;
  }

  static absl::Status Refused(const v1::MigrationRefused& refused) {
    return absl::FailedPreconditionError(Escape(refused.why(), 4000));
  }

  absl::Status ReceiveAnswer(v1::MigrationAnswer& answer) {
    v1::ToSource message;
    absl::Status status = wire_->Receive(message, In(kAnswerPatience));
    if (!status.ok()) return status;
    if (message.has_refused()) return Refused(message.refused());
    if (!message.has_answer()) {
      return absl::InvalidArgumentError("unexpected message from the other end");
    }
    answer = message.answer();
    return absl::OkStatus();
  }

  // From byte `from` on.
  absl::Status SendFile(const std::string& name, uint64_t from) {
    v1::ToDestination message;
    for (uint64_t at = from;; at += message.piece().bytes().size()) {
      auto bytes = detached::ReadBaggage(job_, name, at, kPieceBytes);
      // The oldest output is removed as new output comes.
      if (absl::IsNotFound(bytes.status()) && absl::StartsWith(name, "logs/")) {
        return absl::OkStatus();
      }
      if (!bytes.ok()) return bytes.status();
      if (bytes->empty() && at > 0) return absl::OkStatus();
      message.mutable_piece()->set_name(name);
      message.mutable_piece()->set_offset(at);
      message.mutable_piece()->set_bytes(*std::move(bytes));
      if (absl::Status sent = Send(message); !sent.ok()) return sent;
      sent_[name] = at + message.piece().bytes().size();
      bytes_ += message.piece().bytes().size();
      if (message.piece().bytes().empty()) return absl::OkStatus();
    }
  }

  absl::Status SendOutput() {
    const auto files = detached::ListBaggage(job_);
    if (!files.ok()) return files.status();
    for (const detached::Baggage& file : *files) {
      if (!file.grows) continue;
      if (absl::Status sent = SendNews(file); !sent.ok()) return sent;
    }
    return absl::OkStatus();
  }

  // No launcher has the job: nothing changes any more.
  absl::Status SendRest(v1::JournalState::Phase phase) {
    if (shared_) return absl::OkStatus();
    rest_until_ = In(kRestPatience);
    if (!lock_) {
      auto lock = job_.Lock(detached::Ourselves());
      if (!lock.ok()) return lock.status();
      lock_ = *std::move(lock);
    }
    auto journal = job_.OpenJournal();
    if (!journal.ok()) return journal.status();
    absl::Status status = CheckPhase(journal->second.state, phase);
    if (!status.ok()) return status;
    const auto files = detached::ListBaggage(job_);
    if (!files.ok()) return files.status();
    for (const detached::Baggage& file : *files) {
      absl::Status sent = file.grows ? SendNews(file) : SendFile(file.name, 0);
      if (!sent.ok()) return sent;
    }
    rest_until_ = TimePoint::max();
    v1::JournalRecord ahead;
    v1::Launcher& launcher = *ahead.mutable_generation_taken();
    launcher = detached::Ourselves();
    // Launchers there count up from what they were sent. One that is started here after all comes
    // after any of them, whatever has become of them.
    launcher.set_generation(journal->second.state.launcher().generation() +
                            detached::kAheadOfOthers);
    std::string frames;
    status = journal::AppendRecord(ahead, /*begins_batch=*/true, &frames);
    return status.ok() ? journal->first.Commit(frames) : status;
  }

  // Without being interrupted.
  absl::Status HaveItTaken() {
    wire_->InterruptBy(nullptr);
    v1::ToDestination message;
    message.mutable_take();
    return Send(message);
  }

  // FAILED_PRECONDITION: it has not, and says so.
  absl::StatusOr<v1::JobTaken> AwaitTaken(TimePoint deadline) {
    for (;;) {
      v1::ToSource answer;
      if (absl::Status got = wire_->Receive(answer, deadline); !got.ok()) return got;
      if (answer.has_refused()) return Refused(answer.refused());
      if (answer.has_taken()) return answer.taken();
      if (answer.has_says()) Relay(answer.says().text());
    }
  }

  // Its first word: the job is there.
  absl::Status AwaitArrival() {
    v1::ToSource answer;
    absl::Status got = wire_->Receive(answer, In(kTakenPatience));
    if (!got.ok()) return got;
    if (answer.has_refused()) return Refused(answer.refused());
    if (answer.has_says()) return absl::OkStatus();
    return absl::InvalidArgumentError("unexpected message from the other end");
  }

  // Another machine's words, for this terminal.
  static void Relay(absl::string_view text) {
    for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      std::fprintf(stderr, "%s\n", Escape(line, 4000).c_str());
    }
  }

  void Forget() {
    if (shared_) return;
    const absl::Status gone = jobs_.MoveTo(host_, job_, *std::exchange(lock_, std::nullopt));
    if (gone.ok()) return;
    std::fprintf(stderr, "dtrain: warning: the job has moved, but not all of it is gone here: %s\n",
                 std::string(gone.message()).c_str());
  }

  void SayWhere(const v1::JobTaken& taken) const {
    if (options_.json) {
      const nlohmann::ordered_json told = {{"id", job_.id()},
                                           {"host", host_},
                                           {"supervisor", taken.supervisor()},
                                           {"ended", taken.ended()},
                                           {"bytes", bytes_}};
      std::printf("%s\n", SafeJson(told.dump(2)).c_str());
    } else if (taken.ended()) {
      std::printf("%s is on %s now, and has ended\n", job_.id().c_str(), Escape(host_).c_str());
    } else {
      const std::string& by = taken.supervisor();
      std::printf("%s now runs from %s%s\n", job_.id().c_str(), Escape(host_).c_str(),
                  by.empty() ? "" : absl::StrCat(", supervised by ", Escape(by)).c_str());
    }
  }

  // Of a job that was never started.
  absl::Status Unmade(const absl::Status& why) {
    jobs_.ForgetMove(job_.id());
    absl::Status gone;
    if (shared_ && !lock_) {
      if (auto lock = job_.Lock(detached::Ourselves()); lock.ok()) lock_ = *std::move(lock);
    }
    if (lock_) gone = jobs_.Discard(job_, *std::exchange(lock_, std::nullopt));
    return absl::Status(
        why.code(), absl::StrCat(options_.to.host, ": ", why.message(), "; nothing was started",
                                 gone.ok() ? ""
                                           : absl::StrCat(", but not all of the job is gone here: ",
                                                          gone.message())));
  }

  // Nothing has changed.
  absl::Status Stays(const absl::Status& why) {
    return absl::Status(why.code(), absl::StrCat(options_.to.host, ": ", why.message(), "; ",
                                                 job_.id(), " was not changed"));
  }

  // It has lost its launcher here, or is about to.
  absl::Status Back(const absl::Status& why) {
    wire_->InterruptBy(nullptr);
    lock_.reset();
    return absl::Status(why.code(), absl::StrCat(options_.to.host, ": ", why.message(), "; ",
                                                 job_.id(), " ", StartHere()));
  }

  // What has become of it.
  std::string StartHere() {
    // One that was told to leave does so, sooner or later.
    const absl::Status left = detached::HaveLauncherLeave(job_, In(kBackPatience));
    if (job_.HasSummary()) return "has ended meanwhile";
    const auto holder = job_.Holder();
    if (holder.ok() && *holder && !detached::IsHere(**holder)) {
      return absl::StrCat("has a launcher on ", Escape((*holder)->host()));
    }
    const std::string attach = absl::StrCat("`dtrain attach ", job_.id(), "`");
    if (!left.ok()) {
      return absl::StrCat("stays here; ", left.message(), ": ", attach,
                          " starts another when it has");
    }
    const auto by = detached::ChooseSupervisor(detached::ReadSupervisorFacts(jobs_.place()));
    auto start = detached::LauncherStart::Begin(job_, by.value_or(detached::Supervisor::kMinder));
    const TimePoint deadline = In(kBackPatience);
    const auto end = start.ok() ? start->Wait(detached::Standing::Stage::kHasJob,
                                              [&] { return Clock::now() < deadline; })
                                : detached::LauncherStart::End::kOver;
    if (end == detached::LauncherStart::End::kReached) return "stays here, with a new launcher";
    const std::string log = job_.path() + "/launcher.log";
    if (end == detached::LauncherStart::End::kGivenUp) {
      return absl::StrCat("stays here; its new launcher has not taken it over yet (see ", log, ")");
    }
    return absl::StrCat("has no launcher: a new one failed to take it over (see ", log, "); ",
                        attach, " starts another");
  }

  absl::Status SendNews(const detached::Baggage& file) {
    const uint64_t from = sent_[file.name];
    if (from > 0 && from == file.size) return absl::OkStatus();
    return SendFile(file.name, from);
  }

  const detached::Jobs& jobs_;
  const detached::JobFolder& job_;
  const Options& options_;
  Ssh ssh_;
  std::optional<Wire> wire_;
  std::string host_;                      // as the other end calls itself
  bool shared_ = false;                   // it sees our folder
  std::map<std::string, uint64_t> sent_;  // bytes, by file
  uint64_t bytes_ = 0;
  TimePoint rest_until_ = TimePoint::max();
  std::optional<os::FileLock> lock_;
};

}  // namespace

absl::Status Depart(const detached::Jobs& jobs, const detached::JobFolder& job,
                    const Options& options) {
  return Departure(jobs, job, options).Move();
}

absl::StatusOr<Started> StartThere(const detached::Jobs& jobs, const detached::JobFolder& job,
                                   const Options& options, bool no_wait) {
  return Departure(jobs, job, options).Start(no_wait);
}

}  // namespace dtrain::migrate
