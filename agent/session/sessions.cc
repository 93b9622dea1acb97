// SPDX-License-Identifier: Apache-2.0
#include "agent/session/sessions.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/auth/authorise.h"
#include "agent/session/withheld_gpus.h"
#include "common/log/log.h"
#include "common/os/cgroup.h"
#include "common/os/crash.h"
#include "common/os/credentials.h"
#include "common/os/pidfd.h"
#include "common/os/process_tree.h"
#include "common/os/scratch_folder.h"

namespace dtrain::session {
namespace {

constexpr char kSessionMethod[] = "/dtrain.v1.Agent/Session";
constexpr char kLogsMethod[] = "/dtrain.v1.Agent/Logs";
// A launcher that connected says Hello at once; one that does not is no launcher of ours.
constexpr Duration kVisitTimeout = std::chrono::seconds(30);
// A shepherd answers in a millisecond; one that is stopped or hangs is no shepherd any more.
constexpr Duration kAccountTimeout = std::chrono::seconds(3);
// Launches of one user that have begun and not come to their start, or have left their shepherds,
// which the user may have stopped. Each has a process here, for as long as its launcher's lease
// says, also when the launcher is gone.
constexpr size_t kMostStarting = 128;
// Of one that is not welcomed yet, as its shepherd does not run.
constexpr size_t kMostEarlyBytes = 1 << 20;
constexpr Duration kKillBound = std::chrono::seconds(2);
constexpr Duration kKillPause = std::chrono::milliseconds(5);

std::pair<std::string, uint32_t> KeyOf(const JobDirectory& directory) {
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(directory.path().substr(directory.path().rfind('/') + 1), '.');
  uint32_t attempt = 0;
  (void)absl::SimpleAtoi(parts.second, &attempt);
  return {parts.first, attempt};
}

}  // namespace

struct Sessions::Foundling {
  Foundling(loop::Loop& loop, JobDirectory where) : directory(std::move(where)), timer(loop) {}
  JobDirectory directory;
  std::optional<v1::JobRecord> record;
  std::set<uint32_t> killed;  // pids
  os::UniqueFd listener;      // pidfd of who answers there, where the kernel can tell
  uid_t uid = 0;              // whose job it is
  std::unique_ptr<ShepherdProcess> shepherd;
  loop::Timer timer;
  std::pair<std::string, uint32_t> key;  // job and attempt, by the directory's name
  bool adopted = false;
  std::string why;  // it was given up
  TimePoint give_up_at;
};

Sessions::Sessions(loop::Loop& loop, Identity self, std::string state_directory,
                   MakeShepherd make_shepherd, Readers readers, loop::Task on_session_ended)
    : loop_(loop),
      self_(std::move(self)),
      state_directory_(std::move(state_directory)),
      make_shepherd_(std::move(make_shepherd)),
      readers_(std::move(readers)),
      on_session_ended_(std::move(on_session_ended)) {}

Sessions::~Sessions() = default;

// ---- streams ------------------------------------------------------------------------------

void Sessions::Accept(std::shared_ptr<Session::Stream> stream, const auth::Identity& peer) {
  auto visitor = visitors_.insert(visitors_.end(), {stream, std::make_unique<loop::Timer>(loop_)});
  visitor->timeout->After(kVisitTimeout, [this, visitor] {
    Dismiss(visitor, absl::DeadlineExceededError("no Hello within 30 s"));
  });
  stream->Start(
      [this, visitor, peer](v1::SessionRequest request) {
        OnFirst(visitor, peer, std::move(request));
      },
      [this, visitor] { Dismiss(visitor, absl::CancelledError("the launcher is gone")); });
}

// Its stream is nobody's from now on.
std::shared_ptr<Session::Stream> Sessions::Release(Visitors::iterator visitor) {
  std::shared_ptr<Session::Stream> stream = std::move(visitor->stream);
  stream->Start([](const v1::SessionRequest&) {}, [] {});
  visitors_.erase(visitor);
  return stream;
}

void Sessions::Dismiss(Visitors::iterator visitor, absl::Status why) {
  std::shared_ptr<Session::Stream> stream = Release(visitor);
  stream->Finish(std::move(why));
  stream->WhenOver([this] { on_session_ended_(); });
}

void Sessions::OnFirst(Visitors::iterator visitor, const auth::Identity& peer,
                       v1::SessionRequest request) {
  std::shared_ptr<Session::Stream> stream = Release(visitor);
  if (request.hello().resume()) {
    Resume(std::move(stream), peer, request.hello());
  } else {
    Open(std::move(stream), peer, std::move(request));
  }
}

void Sessions::Open(std::shared_ptr<Session::Stream> stream, const auth::Identity& peer,
                    v1::SessionRequest request) {
  const v1::Hello& hello = request.hello();
  // Who says that another's job is his own is told so before anything of that name is made.
  if (const Session* there = Find(hello.job_id(), hello.attempt()); there != nullptr) {
    if (absl::Status may = Check(peer, kSessionMethod, there, &hello); !may.ok()) {
      return stream->Finish(std::move(may));
    }
  }
  if (absl::Status may = Check(peer, kSessionMethod, nullptr, &hello); !may.ok()) {
    return stream->Finish(std::move(may));
  }
  if (std::string why = quarantine_.Why(loop_.Now()); !why.empty()) {
    return stream->Finish(absl::FailedPreconditionError(why));
  }
  RemoveEnded();
  const Owner owner{peer.account->uid, peer.account->name};
  if (Starting(owner.uid) >= kMostStarting) {
    return stream->Finish(absl::ResourceExhaustedError(
        absl::StrCat(kMostStarting, " launches of ", owner.name,
                     " are still starting here, "
                     "or have ended but left their shepherds behind")));
  }
  auto shepherd = make_shepherd_(owner, hello);
  if (!shepherd.ok()) return RefuseShepherd(*stream, shepherd.status());
  (*shepherd)->set_presence(PresenceOf(owner.uid));
  auto opening = openings_.insert(openings_.end(), Opening{stream, owner, *std::move(shepherd)});
  OnEarly(opening, std::move(request));
  stream->Start([this, opening](v1::SessionRequest more) { OnEarly(opening, std::move(more)); },
                [opening] {
                  opening->closed = true;
                  // Its connection need not wait for the shepherd.
                  opening->stream->Finish(absl::CancelledError("the launcher is gone"));
                });
  opening->shepherd->WhenStarted(
      [this, opening](absl::Status started) { OnShepherdStarted(opening, std::move(started)); });
}

// A launcher waits for its Welcome; another one must not have us keep whatever it sends.
void Sessions::OnEarly(Openings::iterator opening, v1::SessionRequest request) {
  if (opening->bytes > kMostEarlyBytes) return;
  opening->bytes += request.ByteSizeLong();
  opening->requests.push_back(std::move(request));
  if (opening->bytes <= kMostEarlyBytes) return;
  opening->requests.clear();
  opening->stream->Finish(absl::ResourceExhaustedError("more than 1 MiB before the Welcome"));
}

void Sessions::OnShepherdStarted(Openings::iterator opening, absl::Status started) {
  Opening opened = std::move(*opening);
  openings_.erase(opening);
  const std::shared_ptr<Session::Stream> stream = opened.stream;
  if (!started.ok() || opened.requests.empty()) {
    stream->Start([](const v1::SessionRequest&) {}, [] {});
    if (!started.ok()) RefuseShepherd(*stream, started);
    for (loop::Task& task : opened.then) task();
    return stream->WhenOver([this] { on_session_ended_(); });
  }
  auto place = sessions_.insert(sessions_.end(), nullptr);
  auto alive = std::make_shared<bool>(true);
  *place = std::make_unique<Session>(
      Session::Surroundings{loop_, readers_, reservations_, quarantine_, self_, state_directory_},
      opened.owner, std::move(opened.shepherd), stream, [this, place, stream, alive] {
        *alive = false;
        sessions_.erase(place);
        stream->WhenOver([this] { on_session_ended_(); });
      });
  for (v1::SessionRequest& request : opened.requests) {
    if (*alive) (*place)->Take(std::move(request));
  }
  if (*alive && opened.closed) (*place)->OnStreamClosed();
  for (loop::Task& task : opened.then) task();
}

void Sessions::RefuseShepherd(Session::Stream& stream, const absl::Status& why) {
  // If the agent itself lacks a right, the caller was not refused.
  const absl::StatusCode code =
      absl::IsPermissionDenied(why) ? absl::StatusCode::kFailedPrecondition : why.code();
  const std::string text = absl::StrCat("start the shepherd: ", why.message());
  log::Error(text);
  stream.Finish(absl::Status(code, text));
}

// Folders of jobs that ended while the disk was full or read-only.
void Sessions::RemoveEnded() {
  if (!self_.resumable) return;
  for (const JobDirectory& directory : JobDirectory::List(state_directory_)) {
    const auto [job_id, attempt] = KeyOf(directory);
    if (Find(job_id, attempt) == nullptr) directory.Remove();
  }
}

void Sessions::Resume(std::shared_ptr<Session::Stream> stream, const auth::Identity& peer,
                      const v1::Hello& hello) {
  if (!self_.resumable) {
    // The node's resident agent is not back yet, and its bridge has done without.
    stream->Finish(absl::UnavailableError("no resident agent runs here"));
    return;
  }
  for (Opening& opening : openings_) {
    const v1::Hello& first = opening.requests.empty() ? hello : opening.requests[0].hello();
    if (!peer.account || opening.owner.uid != peer.account->uid ||
        first.job_id() != hello.job_id() || first.attempt() != hello.attempt()) {
      continue;
    }
    opening.then.push_back([this, stream, peer, hello] { Resume(stream, peer, hello); });
    return;
  }
  Session* session = Find(hello.job_id(), hello.attempt());
  if (session != nullptr) {
    if (absl::Status may = Check(peer, kSessionMethod, session, &hello); !may.ok()) {
      return stream->Finish(std::move(may));
    }
    if (session->CanResume(hello)) return session->Resume(std::move(stream), hello);
  }
  auto lost = lost_.find({hello.job_id(), hello.attempt()});
  stream->Finish(absl::NotFoundError(
      lost != lost_.end()
          ? lost->second
          : absl::StrCat("this agent has no such job (any more): it ",
                         "was restarted before the job began, or ", "has ended its workers")));
}

bool Sessions::starting() const {
  return !visitors_.empty() || !openings_.empty() ||
         std::any_of(sessions_.begin(), sessions_.end(),
                     [](const auto& session) { return session != nullptr && session->starting(); });
}

bool Sessions::Awaits(absl::FunctionRef<bool(const Owner&)> whose) const {
  return std::any_of(sessions_.begin(), sessions_.end(), [&](const auto& session) {
    return session != nullptr && session->away() && whose(session->owner());
  });
}

std::shared_ptr<const bool> Sessions::PresenceOf(uid_t uid) {
  std::erase_if(presences_, [](const auto& each) { return each.second.use_count() == 1; });
  std::shared_ptr<const bool>& presence = presences_[uid];
  if (presence == nullptr) presence = std::make_shared<const bool>(true);
  return presence;
}

size_t Sessions::Starting(uid_t uid) const {
  const auto presence = presences_.find(uid);
  const size_t shepherds =
      presence == presences_.end() ? 0 : static_cast<size_t>(presence->second.use_count() - 1);
  const auto running = std::count_if(
      sessions_.begin(), sessions_.end(), [uid](const std::unique_ptr<Session>& session) {
        return session != nullptr && session->owner().uid == uid && !session->starting();
      });
  return shepherds - std::min(shepherds, static_cast<size_t>(running));
}

Session* Sessions::Find(const std::string& job_id, uint32_t attempt) {
  for (const auto& session : sessions_) {
    if (session != nullptr && session->hello().job_id() == job_id &&
        session->hello().attempt() == attempt) {
      return session.get();
    }
  }
  return nullptr;
}

void Sessions::AcceptLogs(const v1::LogsRequest& request, std::shared_ptr<LogRelay::Writer> writer,
                          const auth::Identity& peer) {
  Session* session = Find(request.job_id(), request.attempt());
  if (session == nullptr) return writer->Finish(absl::NotFoundError("no session of this job"));
  if (absl::Status may = Check(peer, kLogsMethod, session, nullptr); !may.ok()) {
    return writer->Finish(std::move(may));
  }
  session->AttachLogs(std::move(writer), request);
}

absl::Status Sessions::Check(const auth::Identity& peer, absl::string_view method,
                             const Session* session, const v1::Hello* hello) {
  std::optional<auth::Job> job;
  if (session != nullptr) {
    job = {session->hello().job_id(), session->owner().name, session->owner().uid};
  }
  os::NoteRequest(method, job ? job->id : hello != nullptr ? hello->job_id() : "", peer.name);
  absl::Status may = auth::Authorise(peer, method, job ? &*job : nullptr);
  // An agent on a byte stream has its one launcher, and answers to nobody else.
  if (self_.resumable && (hello != nullptr || !may.ok())) {
    if (!job && hello != nullptr) job = {hello->job_id(), peer.name, 0};
    log::Info(auth::AuditLine(peer, method, job ? &*job : nullptr, may));
  }
  return may;
}

// ---- what an agent before us has left -------------------------------------------------------

void Sessions::AdoptAll(OnAdopted done) {
  auto withheld = ReadWithheld(state_directory_);
  if (withheld.ok()) {
    reservations_.Withhold(*withheld);
  } else if (absl::IsDataLoss(withheld.status())) {
    log::Error(
        absl::StrCat("the list of withheld GPUs cannot be read: ", withheld.status().message()));
  } else {
    return done(withheld.status());
  }
  std::vector<std::pair<JobDirectory, absl::StatusOr<v1::JobRecord>>> found;
  for (JobDirectory& directory : JobDirectory::List(state_directory_)) {
    auto record = directory.Read();
    const absl::Status& read = record.status();
    if (!read.ok() && !absl::IsNotFound(read) && !absl::IsDataLoss(read)) return done(read);
    found.emplace_back(std::move(directory), std::move(record));
  }
  adopted_ = std::move(done);
  for (auto& [directory, record] : found) Look(std::move(directory), std::move(record));
  if (foundlings_.empty() && adopted_) std::exchange(adopted_, nullptr)(absl::OkStatus());
}

void Sessions::Look(JobDirectory directory, absl::StatusOr<v1::JobRecord> record) {
  if (record.ok() && record->boot_id() != os::BootId()) {
    log::Warn(absl::StrCat("job ", record->job_id(), ": the machine was rebooted since"));
    directory.Remove();  // nothing else of it is left
    return;
  }
  foundlings_.push_back(std::make_unique<Foundling>(loop_, std::move(directory)));
  Foundling& foundling = *foundlings_.back();
  foundling.key = KeyOf(foundling.directory);
  foundling.uid = record.ok() ? record->uid() : geteuid();
  if (record.ok()) foundling.record = *std::move(record);
  auto socket = foundling.directory.Connect();
  if (!socket.ok()) return GiveUp(foundling, std::string(socket.status().message()));
  auto peer = os::PeerOf(socket->get());
  if (!peer.ok()) return GiveUp(foundling, std::string(peer.status().message()));
  if (!foundling.record) foundling.uid = peer->uid;
  // Only this leads to the listener for sure: its pid may be another process's by now.
  auto listener = os::PidfdOfPeer(socket->get());
  if (listener.ok() && peer->uid == foundling.uid) foundling.listener = *std::move(listener);
  if (!foundling.record) return GiveUp(foundling, "the agent's record of it is missing or damaged");
  const v1::JobRecord& known = *foundling.record;
  if (peer->pid != static_cast<pid_t>(known.shepherd_pid()) || peer->uid != known.uid()) {
    return GiveUp(foundling, "another process answers in its place");
  }
  auto pidfd = os::OpenProcess(peer->pid, known.shepherd_start_time(), known.uid());
  if (!pidfd.ok()) return GiveUp(foundling, std::string(pidfd.status().message()));
  foundling.shepherd = ShepherdProcess::Adopt(loop_, os::Child{peer->pid, *std::move(pidfd)},
                                              *std::move(socket), foundling.record->cgroup());
  foundling.shepherd->Listen(
      [this, &foundling](v1::ShepherdEvent event, os::UniqueFd) {
        if (event.has_account()) OnAccount(foundling, event.account(), event.received());
      },
      [this, &foundling](const std::string& why) { GiveUp(foundling, why); });
  foundling.timer.After(kAccountTimeout,
                        [this, &foundling] { GiveUp(foundling, "it does not answer"); });
}

void Sessions::OnAccount(Foundling& foundling, const v1::Account& account, uint64_t taken) {
  if (foundling.adopted || !foundling.why.empty()) return;
  if (account.part().workers_size() == 0) return GiveUp(foundling, "it has no part of the job");
  foundling.timer.Cancel();
  foundling.adopted = true;
  foundling.shepherd->set_presence(PresenceOf(foundling.record->uid()));
  auto place = sessions_.insert(sessions_.end(), nullptr);
  *place = std::make_unique<Session>(
      Session::Surroundings{loop_, readers_, reservations_, quarantine_, self_, state_directory_},
      Owner{foundling.record->uid(), foundling.record->owner()}, std::move(foundling.shepherd),
      account, taken, std::move(foundling.directory), [this, place] {
        sessions_.erase(place);
        on_session_ended_();
      });
  log::Info(absl::StrCat("job ", account.part().job_id(), ": taken over from the previous agent, ",
                         account.part().workers_size(), " workers"));
  Decided(foundling);
}

// First the workers, then the word about it.
void Sessions::GiveUp(Foundling& foundling, const std::string& why) {
  if (foundling.adopted || !foundling.why.empty()) return;
  foundling.why = why;
  foundling.give_up_at = loop_.Now() + kKillBound;
  KillRest(foundling);
}

void Sessions::KillRest(Foundling& foundling) {
  const auto& [job_id, attempt] = foundling.key;
  std::vector<os::ProcessInfo> processes = os::FindByEnvironment(
      foundling.uid,
      {absl::StrCat("DTRAIN_JOB_ID=", job_id), absl::StrCat("DTRAIN_ATTEMPT=", attempt)});
  if (foundling.record) {
    const auto pid = static_cast<pid_t>(foundling.record->shepherd_pid());
    const uint64_t start = foundling.record->shepherd_start_time();
    if (os::OpenProcess(pid, start, foundling.record->uid()).ok()) {
      processes.push_back({pid, start, '?'});
    }
  }
  if (foundling.listener) (void)os::SendSignal(foundling.listener.get(), SIGKILL);
  bool left = false;
  std::string path;
  if (foundling.record) {
    path = foundling.record->cgroup();
  } else if (auto parent = os::FindWritableCgroup(); parent.ok()) {
    path = absl::StrCat(*parent, "/", ShepherdCgroupName(job_id, attempt));
  }
  if (!path.empty()) {
    os::Cgroup cgroup(path);  // with the shepherd in it
    cgroup.Kill();
    left = cgroup.Populated();
    if (!left) cgroup.Remove().IgnoreError();  // also when none was made
  }
  for (const os::ProcessInfo& process : processes) {
    foundling.killed.insert(static_cast<uint32_t>(process.pid));
  }
  if (!path.empty()) {
    for (pid_t pid : os::Cgroup(path).Processes()) {
      if (auto process = os::FindProcess(pid)) processes.push_back(*process);
    }
  }
  const std::string owner =
      foundling.record ? foundling.record->owner() : absl::StrCat(foundling.uid);
  left = quarantine_.Kill(loop_.Now(), job_id, owner, processes) > 0 || left;
  if (left && loop_.Now() < foundling.give_up_at) {
    foundling.timer.After(kKillPause, [this, &foundling] { KillRest(foundling); });
    return;
  }
  if (left) log::Error(absl::StrCat("job ", job_id, ": some of its processes cannot be killed"));
  log::Error(absl::StrCat("job ", job_id, ": its shepherd cannot be taken over: ", foundling.why));
  lost_[foundling.key] =
      absl::StrCat("its agent was restarted and could not take the job over: ", foundling.why,
                   "; the workers have been killed");
  foundling.directory.Remove();
  if (foundling.record) {
    const v1::JobRecord& record = *foundling.record;
    const absl::Status removed =
        os::RemoveScratchFolders(os::ScratchPlaces(), static_cast<pid_t>(record.shepherd_pid()),
                                 record.shepherd_start_time(), record.uid());
    if (!removed.ok()) log::Warn(absl::StrCat("job ", job_id, ": cannot ", removed.message()));
  }
  if (foundling.record) LookAtGpus(foundling.record->gpus(), foundling.killed);
  Decided(foundling);
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

void Sessions::Decided(Foundling& foundling) {
  // Posted: its own callbacks are on the stack.
  loop_.Post([this, &foundling] {
    foundlings_.remove_if([&](const auto& each) { return each.get() == &foundling; });
    if (foundlings_.empty() && adopted_) std::exchange(adopted_, nullptr)(absl::OkStatus());
  });
}

}  // namespace dtrain::session
