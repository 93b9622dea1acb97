// SPDX-License-Identifier: Apache-2.0
#include "agent/session/sessions.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/session/join_phase.h"
#include "agent/session/withheld_gpus.h"
#include "common/base/patience.h"
#include "common/log/log.h"

namespace dtrain::session {
namespace {

constexpr char kSessionMethod[] = "/dtrain.v1.Agent/Session";
constexpr char kLogsMethod[] = "/dtrain.v1.Agent/Logs";
// Launches of one user that have begun and not come to their start, or have left their shepherds,
// which the user may have stopped. Each has a process here, for as long as its launcher's lease
// says, also when the launcher is gone.
constexpr size_t kMostStarting = 128;
// Jobs of one user here, in whatever state: each takes a handful of the agent's descriptors.
constexpr size_t kMostOfUser = 1024;
// Folders that are removed at once.
constexpr size_t kMostRemoved = 8;
// Looks for shepherds of jobs that are not ours go through all processes of the node. They take no
// more of the loop's time than this part.
constexpr int kPartOfLooks = 10;
constexpr size_t kMostStrangers = 32;       // of one user
constexpr size_t kMostReports = 128 << 20;  // bytes, of one user

}  // namespace

Sessions::Sessions(loop::Loop& loop, Identity self, std::string state_directory,
                   spawn::Spawner& spawner, Readers readers, loop::Task on_session_ended)
    : loop_(loop),
      self_(std::move(self)),
      state_directory_(std::move(state_directory)),
      spawner_(spawner),
      readers_(std::move(readers)),
      on_session_ended_(std::move(on_session_ended)),
      roster_(loop_, self_.resumable),
      inquiries_(Around(), spawner_.quarantine(), roster_),
      visitors_(
          loop_,
          [this](std::shared_ptr<Session::Stream> stream, const auth::Identity& peer,
                 std::optional<spawn::Connected> connected, const v1::Hello& hello) {
            if (hello.resume()) return Resume(std::move(stream), peer, hello);
            Open(std::move(stream), peer, std::move(connected), hello);
          },
          [this] { on_session_ended_(); }),
      look_(loop_) {}

Sessions::~Sessions() = default;

// ---- streams ------------------------------------------------------------------------------

void Sessions::Open(std::shared_ptr<Session::Stream> stream, const auth::Identity& peer,
                    std::optional<spawn::Connected> connected, const v1::Hello& hello) {
  if (absl::Status may = roster_.Check(peer, kSessionMethod, nullptr, &hello); !may.ok()) {
    return stream->Finish(std::move(may));
  }
  // Nor does one begin an attempt of a job that it has lost.
  for (const auto& each : roster_.all()) {
    if (each == nullptr || each->owner().uid != peer.account->uid ||
        each->hello().job_id() != hello.job_id() ||
        each->hello().generation() <= hello.generation()) {
      continue;
    }
    return stream->Finish(AnothersNow(each->hello()));
  }
  if (!leaves_.empty()) {
    return stream->Finish(absl::FailedPreconditionError(
        absl::StrCat("this host is to go away and takes no jobs: ", leaves_)));
  }
  const Owner owner{peer.account->uid, peer.account->name};
  if (std::string why = spawner_.quarantine().Why(loop_.Now(), owner.uid); !why.empty()) {
    return stream->Finish(absl::FailedPreconditionError(why));
  }
  EndEarlier(hello, owner);
  RemoveEnded();
  if (Present(owner.uid) >= kMostOfUser) {
    return stream->Finish(absl::ResourceExhaustedError(absl::StrCat(
        owner.name, " has ", kMostOfUser, " jobs here, as many as one user may have")));
  }
  if (Starting(owner.uid) >= kMostStarting) {
    return stream->Finish(absl::ResourceExhaustedError(
        absl::StrCat(kMostStarting, " launches of ", owner.name,
                     " are still starting here, "
                     "or have ended but left their shepherds behind")));
  }
  auto processes = spawner_.Spawn({owner, hello.job_id(), hello.attempt(),
                                   static_cast<uint32_t>(PatienceOf(hello).count()),
                                   hello.grace_ms(), std::move(connected)});
  if (!processes.ok()) return RefuseShepherd(*stream, peer, hello, processes.status());
  (*processes)->set_presence(PresenceOf(owner.uid));
  auto opening =
      openings_.insert(openings_.end(), Opening{stream, hello, peer, owner, *std::move(processes)});
  link::CarrierHandlers handlers;
  handlers.on_closed = [opening](absl::Status why) {
    opening->closed = true;
    // Its connection need not wait for the shepherd.
    if (why.ok()) why = absl::CancelledError("the launcher is gone");
    opening->stream->Finish(std::move(why));
  };
  stream->Listen(std::move(handlers));
  opening->processes->WhenStarted(
      [this, opening](absl::Status started) { OnShepherdStarted(opening, std::move(started)); });
}

void Sessions::OnShepherdStarted(Openings::iterator opening, absl::Status started) {
  Opening opened = std::move(*opening);
  openings_.erase(opening);
  const std::shared_ptr<Session::Stream> stream = opened.stream;
  if (!started.ok()) {
    stream->Listen({});
    RefuseShepherd(*stream, opened.peer, opened.hello, started);
    for (loop::Task& task : opened.then) task();
    return stream->WhenOver([this] { on_session_ended_(); });
  }
  roster_.Audit(opened.peer, kSessionMethod,
                {opened.hello.job_id(), opened.owner.name, opened.owner.uid}, /*again=*/false);
  if (!opened.closed) EndEarlier(opened.hello, opened.owner);
  auto place = roster_.AddPlace();
  auto alive = std::make_shared<bool>(true);
  *place = std::make_unique<Session>(
      AroundJobOf(opened.owner.uid), opened.owner,
      std::make_unique<ShepherdChannel>(loop_, std::move(opened.processes)), stream,
      [this, place, stream, alive] {
        *alive = false;
        roster_.Remove(place);
        ++farewells_;
        stream->WhenOver([this] {
          --farewells_;
          on_session_ended_();
        });
      });
  (*place)->Begin(opened.hello);
  if (*alive && opened.closed) (*place)->OnStreamClosed();
  for (loop::Task& task : opened.then) task();
}

void Sessions::RefuseShepherd(Session::Stream& stream, const auth::Identity& peer,
                              const v1::Hello& hello, const absl::Status& why) {
  const auth::Account& owner = *peer.account;
  // If the agent itself lacks a right, the caller was not refused.
  absl::StatusCode code =
      absl::IsPermissionDenied(why) ? absl::StatusCode::kFailedPrecondition : why.code();
  // The node's policy, which is not the agent's, does so.
  const bool is_denied = absl::IsUnauthenticated(why);
  if (is_denied) code = absl::StatusCode::kPermissionDenied;
  roster_.AuditFailed(peer, kSessionMethod, {hello.job_id(), owner.name, owner.uid},
                      is_denied ? why : absl::OkStatus());
  const std::string text = absl::StrCat("start the shepherd: ", why.message());
  if (auto line = roster_.Bound(owner.name, "start", text)) log::Error(*line);
  stream.Finish(absl::Status(code, text));
}

// Attempts of the same job that never began here, or this very one: their launcher has given them
// up, perhaps without reaching us, or begins again as its connection broke. What they have reserved
// would be held against the job itself until their lease is over. Sessions of an elastic job are no
// attempts, and stand side by side.
void Sessions::EndEarlier(const v1::Hello& hello, const Owner& owner) {
  std::vector<Session*> earlier;
  for (const auto& each : roster_.all()) {
    if (each == nullptr || !each->joined() || each->owner().uid != owner.uid) continue;
    const v1::Hello& theirs = each->hello();
    if (theirs.job_id() != hello.job_id() || theirs.attempt() > hello.attempt()) continue;
    if (!theirs.has_elastic() && !hello.has_elastic()) earlier.push_back(each.get());
  }
  for (Session* session : earlier) {
    log::Info(absl::StrCat(
        "job ", hello.job_id(), ": attempt ", session->hello().attempt(),
        ", which its launcher has not let go, gives back what it has reserved: attempt ",
        hello.attempt(), " begins"));
    session->Leave("the job has begun again here");
  }
}

// Folders of jobs that ended while the disk was full or read-only. Not those of jobs that were left
// to us, and whose launchers have yet to come.
void Sessions::RemoveEnded() {
  if (!self_.resumable || loop_.Now() < next_removal_) return;
  const TimePoint begin = loop_.Now();
  std::vector<JobDirectory> ended;
  for (JobDirectory& directory : JobDirectory::List(state_directory_)) {
    const bool held = std::any_of(roster_.all().begin(), roster_.all().end(),
                                  [&](const std::unique_ptr<Session>& session) {
                                    return session != nullptr && session->Holds(directory);
                                  });
    if (held) continue;
    if (ended.size() == kMostRemoved) break;
    ended.push_back(std::move(directory));
  }
  JobDirectory::RemoveDead(ended);
  next_removal_ = begin + kPartOfLooks * (loop_.Now() - begin);
}

void Sessions::Resume(std::shared_ptr<Session::Stream> stream, const auth::Identity& peer,
                      const v1::Hello& hello, bool looked) {
  if (!IsSound(hello)) {
    return stream->Finish(absl::InvalidArgumentError(
        "a Hello without the id of a job, with a lease below 100 ms, or of more than 4096 bytes"));
  }
  // An agent on a byte stream has one launcher, which may have it look as often as it likes.
  const auto has_shepherd = [&] {
    return peer.account &&
           JobDirectory::HasShepherd({peer.account->uid, hello.job_id(), hello.attempt()});
  };
  if (!self_.resumable && (!self_.last_asked || has_shepherd())) {
    // The node's resident agent is not back yet, and its bridge has done without.
    stream->Finish(absl::UnavailableError("no resident agent runs here"));
    return;
  }
  Session* session =
      peer.account ? roster_.Find(peer.account->uid, hello.job_id(), hello.attempt()) : nullptr;
  if (absl::Status may = roster_.Check(peer, kSessionMethod, session, &hello); !may.ok()) {
    return stream->Finish(std::move(may));
  }
  for (Opening& opening : openings_) {
    const v1::Hello& first = opening.hello;
    if (opening.owner.uid != peer.account->uid || first.job_id() != hello.job_id() ||
        first.attempt() != hello.attempt()) {
      continue;
    }
    opening.then.push_back([this, stream, peer, hello] { Resume(stream, peer, hello); });
    return;
  }
  if (session != nullptr && session->CanResume(hello)) {
    if (absl::Status ranks = session->CheckRank(hello); !ranks.ok()) {
      return stream->Finish(std::move(ranks));
    }
    roster_.Audit(peer, kSessionMethod, JobOf(*session), /*again=*/true);
    return session->Resume(std::move(stream), hello);
  }
  if (hello.protocol() != self_.protocol) {
    return stream->Finish(absl::NotFoundError(absl::StrCat(
        "this agent speaks protocol ", self_.protocol, ", the launcher protocol ", hello.protocol(),
        ": it was upgraded while the job ran, and ends the workers when the launcher's lease is "
        "over; upgrade agents across protocols when no job is running")));
  }
  const spawn::JobKey key{peer.account->uid, hello.job_id(), hello.attempt()};
  const auto lost = lost_.find(key);
  if (lost != lost_.end()) return stream->Finish(absl::NotFoundError(lost->second));
  const auto after = [this, stream, peer, hello](const absl::Status& decided) {
    if (decided.ok()) return Resume(stream, peer, hello, /*looked=*/true);
    stream->Finish(absl::UnavailableError(std::string(decided.message())));
  };
  if (session == nullptr && !looked && AdoptLate(key, after)) return;
  AskForShepherd(std::move(stream), key);
}

// Not ours: that it is unknown here says nothing about it.
void Sessions::AskForShepherd(std::shared_ptr<Session::Stream> stream, spawn::JobKey job) {
  const auto same = std::count_if(strangers_.begin(), strangers_.end(),
                                  [&](const Stranger& each) { return each.job.uid == job.uid; });
  if (static_cast<size_t>(same) >= kMostStrangers) {
    return stream->Finish(absl::UnavailableError(
        absl::StrCat(kMostStrangers,
                     " launchers of this user ask for jobs that this agent does "
                     "not have, as many as may ask at once: ask again")));
  }
  strangers_.push_back({std::move(stream), std::move(job)});
  if (strangers_.size() > 1) return;
  if (loop_.Now() >= next_look_) return LookForShepherds();
  look_.At(next_look_, [this] { LookForShepherds(); });
}

void Sessions::LookForShepherds() {
  const TimePoint begin = loop_.Now();
  std::set<spawn::JobKey> jobs;
  for (const Stranger& each : strangers_) jobs.insert(each.job);
  const std::set<spawn::JobKey> living = JobDirectory::FindShepherds(jobs);
  next_look_ = begin + kPartOfLooks * (loop_.Now() - begin);
  for (Stranger& each : std::exchange(strangers_, {})) {
    each.stream->Finish(
        living.contains(each.job)
            ? absl::UnavailableError(
                  "the job runs here under another agent, which has not come back yet")
            : absl::NotFoundError("this agent has no such job (any more): it was restarted before "
                                  "the job began, or has ended its workers"));
  }
}

bool Sessions::starting() const {
  return !visitors_.empty() || !openings_.empty() ||
         std::any_of(roster_.all().begin(), roster_.all().end(), [](const auto& session) {
           return session != nullptr && session->starting() && !session->is_spare();
         });
}

bool Sessions::LeaveSpares() {
  std::vector<Session*> spares;
  for (const auto& each : roster_.all()) {
    if (each != nullptr && each->is_spare()) spares.push_back(each.get());
  }
  for (Session* session : spares) session->Leave("its agent was told to end");
  return !spares.empty();
}

void Sessions::LeaveNode(const std::string& why) {
  if (!leaves_.empty()) return;
  leaves_ = why;
  std::vector<Session*> all;
  for (const auto& each : roster_.all()) {
    if (each != nullptr) all.push_back(each.get());
  }
  for (Session* session : all) {
    session->EndAsNodeLeaves(absl::StrCat("this host leaves the job: ", why));
  }
}

bool Sessions::Awaits(absl::FunctionRef<bool(const Owner&)> whose) const {
  return std::any_of(roster_.all().begin(), roster_.all().end(), [&](const auto& session) {
    return session != nullptr && session->away() && whose(session->owner());
  });
}

std::shared_ptr<const bool> Sessions::PresenceOf(uid_t uid) {
  std::erase_if(presences_, [](const auto& each) { return each.second.use_count() == 1; });
  std::shared_ptr<const bool>& presence = presences_[uid];
  if (presence == nullptr) presence = std::make_shared<const bool>(true);
  return presence;
}

size_t Sessions::Present(uid_t uid) const {
  const auto begun = std::count_if(
      roster_.all().begin(), roster_.all().end(),
      [uid](const auto& each) { return each != nullptr && each->owner().uid == uid; });
  const auto opening = std::count_if(openings_.begin(), openings_.end(),
                                     [uid](const auto& each) { return each.owner.uid == uid; });
  return static_cast<size_t>(begun + opening);
}

size_t Sessions::Starting(uid_t uid) const {
  const auto presence = presences_.find(uid);
  const size_t shepherds =
      presence == presences_.end() ? 0 : static_cast<size_t>(presence->second.use_count() - 1);
  const auto running = std::count_if(
      roster_.all().begin(), roster_.all().end(), [uid](const std::unique_ptr<Session>& session) {
        return session != nullptr && session->owner().uid == uid && !session->starting();
      });
  return shepherds - std::min(shepherds, static_cast<size_t>(running));
}

void Sessions::AcceptLogs(const v1::LogsRequest& request, std::shared_ptr<LogRelay::Writer> writer,
                          const auth::Identity& peer, const Session::Stream* beside) {
  Session* session =
      peer.account ? roster_.Find(peer.account->uid, request.job_id(), request.attempt()) : nullptr;
  if (session == nullptr) return writer->Finish(absl::NotFoundError("no session of this job"));
  if (absl::Status may = roster_.Check(peer, kLogsMethod, session, nullptr); !may.ok()) {
    return writer->Finish(std::move(may));
  }
  session->AttachLogs(std::move(writer), request, beside);
}

// ---- what an agent before us has left -------------------------------------------------------

void Sessions::AdoptAll(absl::AnyInvocable<void(absl::Status)> done) {
  auto withheld = ReadWithheld(state_directory_);
  if (withheld.ok()) {
    reservations_.Withhold(*withheld);
  } else if (absl::IsDataLoss(withheld.status())) {
    log::Error(
        absl::StrCat("the list of withheld GPUs cannot be read: ", withheld.status().message()));
  } else {
    return done(withheld.status());
  }
  JobDirectory::RemoveHidden(state_directory_);
  BeginAdoption(std::move(done));
  spawner_.WhenReady([this](absl::Status begun) {
    if (begun.ok()) begun = adoption_->Begin(JobDirectory::List(state_directory_));
    if (!begun.ok()) EndAdoption(begun);
  });
}

bool Sessions::AdoptLate(const spawn::JobKey& key, absl::AnyInvocable<void(absl::Status)> then) {
  if (!self_.resumable) return false;
  std::vector<JobDirectory> left;
  for (JobDirectory& directory : JobDirectory::List(state_directory_)) {
    if (directory.key() == key) left.push_back(std::move(directory));
  }
  if (left.empty()) return false;
  const bool first = adoption_ == nullptr;
  BeginAdoption(std::move(then));
  if (!first) return true;  // its launcher asks again
  if (absl::Status begun = adoption_->Begin(std::move(left)); !begun.ok()) EndAdoption(begun);
  return true;
}

void Sessions::BeginAdoption(absl::AnyInvocable<void(absl::Status)> done) {
  after_adoption_.push_back(std::move(done));
  if (adoption_ != nullptr) return;
  Adoption::Handlers handlers;
  handlers.on_job = [this](Adoption::Job job) { OnAdopted(std::move(job)); };
  handlers.on_lost = [this](const Adoption::Lost& lost) {
    lost_[lost.key] = lost.why;
    if (lost.record) LookAtGpus(lost.record->gpus(), lost.killed);
  };
  handlers.on_decided = [this] { EndAdoption(absl::OkStatus()); };
  adoption_ = std::make_unique<Adoption>(loop_, spawner_, std::move(handlers));
}

void Sessions::EndAdoption(const absl::Status& how) {
  // It may be on the stack.
  loop_.Post([adoption = std::shared_ptr<Adoption>(std::move(adoption_))] {});
  for (auto& done : std::exchange(after_adoption_, {})) done(how);
}

void Sessions::OnAdopted(Adoption::Job job) {
  job.shepherd->processes().set_presence(PresenceOf(job.owner.uid));
  auto place = roster_.AddPlace();
  *place = std::make_unique<Session>(AroundJobOf(job.owner.uid), job.owner, std::move(job.shepherd),
                                     std::move(job.account), job.record, std::move(job.directory),
                                     [this, place] {
                                       roster_.Remove(place);
                                       on_session_ended_();
                                     });
}

// What a job that was not taken over had. Whoever launches next looks after us.
void Sessions::LookAtGpus(const v1::GpuUse& use, const std::set<uint32_t>& killed) {
  if (use.uuids().empty()) return;
  readers_.gpus(
      [this, alive = std::weak_ptr<bool>(alive_), use, killed](const inventory::GpuReport& report) {
        if (alive.expired()) return;
        GpuRelease gpus(use);
        gpus.After(report.gpus, {killed.begin(), killed.end()});
        Withhold(reservations_, state_directory_, use.holder(), gpus);
      });
}

Surroundings Sessions::AroundJobOf(uid_t uid) {
  std::erase_if(reports_, [](const auto& each) { return each.second.use_count() == 1; });
  std::shared_ptr<rpc::SharedLimit>& reports = reports_[uid];
  if (reports == nullptr) reports = std::make_shared<rpc::SharedLimit>(kMostReports);
  std::erase_if(relays_, [](const auto& each) { return each.second.use_count() == 1; });
  std::shared_ptr<RelayRoom>& relays = relays_[uid];
  if (relays == nullptr) relays = std::make_shared<RelayRoom>();
  Surroundings around = Around();
  around.reports = reports;
  around.relays = relays;
  return around;
}

Surroundings Sessions::Around() {
  return {loop_, readers_,         reservations_,
          self_, state_directory_, successor_ ? &*successor_ : nullptr};
}

}  // namespace dtrain::session
