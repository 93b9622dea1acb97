// SPDX-License-Identifier: Apache-2.0
#include "agent/spawn/own_processes.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/spawn/spawner.h"
#include "agent/stage/staging.h"
#include "common/base/text.h"
#include "common/log/log.h"
#include "common/os/cgroup.h"
#include "common/os/environment.h"
#include "common/os/fd.h"
#include "common/os/pidfd.h"
#include "common/os/scratch_folder.h"

namespace dtrain::spawn {
namespace {

// From the fork to the program: a millisecond, more where the machine is busy.
constexpr Duration kStartLimit = std::chrono::seconds(5);
// For a shepherd without workers to notice that its agent has no more for it.
constexpr Duration kEndPatience = std::chrono::seconds(10);
// Of EndAll.
constexpr Duration kEndPause = std::chrono::milliseconds(5);
constexpr Duration kEndBound = std::chrono::seconds(2);
// It reads the environments of all of the user's processes, and 30,000 of 256 KiB take some
// seconds: so it looks in parts, with pauses, and then has so much more time.
constexpr Duration kLookBound = std::chrono::seconds(30);
constexpr Duration kMostOfLook = std::chrono::milliseconds(100);
// Of a shepherd that asks again and again, so that a user's have a tenth of the loop.
constexpr int kPausesOfKills = 10;

std::string Describe(const os::ExitStatus& status) {
  return status.signal != 0 ? absl::StrCat("killed by signal ", status.signal)
                            : absl::StrCat("exited with code ", status.code);
}

bool HasEnded(int pidfd) {
  pollfd entry = {pidfd, POLLIN, 0};
  return poll(&entry, 1, 0) > 0;
}

}  // namespace

struct OwnProcesses::Beginning {
  Beginning(loop::Loop& loop, os::PendingChild p)
      : pending(std::move(p)), watch(loop, pending.report.get()), limit(loop) {}
  os::PendingChild pending;
  loop::FdWatch watch;
  loop::Timer limit;
  OnStarted done;
};

absl::StatusOr<std::unique_ptr<OwnProcesses>> OwnProcesses::Start(Surroundings around, Owner owner,
                                                                  const std::string& program,
                                                                  const os::Account* user,
                                                                  const std::string& cgroup) {
  auto sockets = os::SocketPair();
  if (!sockets.ok()) return sockets.status();
  os::RefuseDescriptors(sockets->first.get());
  os::UniqueFd directory;
  if (!cgroup.empty()) {
    auto opened = os::Cgroup(cgroup).Open();
    if (!opened.ok()) return opened.status();
    directory = *std::move(opened);
  }
  // Our log is not another user's to write, to cut or to fill. Its end does not block: a shepherd
  // goes on when nobody reads.
  std::pair<os::UniqueFd, os::UniqueFd> words;
  if (user != nullptr) {
    auto pipe = os::Pipe();
    if (!pipe.ok()) return pipe.status();
    for (const os::UniqueFd* end : {&pipe->first, &pipe->second}) {
      if (absl::Status set = os::SetNonBlocking(end->get(), true); !set.ok()) return set;
    }
    words = *std::move(pipe);
  }
  os::SpawnSpec spec;
  spec.argv = {program, "shepherd"};
  spec.env = user != nullptr ? os::LoginEnvironment(*user) : os::OwnEnvironment();
  spec.user = user;
  if (user != nullptr) spec.working_directory = "/";
  spec.cgroup_fd = directory.get();
  spec.stderr_fd = user != nullptr ? words.second.get() : STDERR_FILENO;
  spec.extra_fds = {{sockets->second.get(), kShepherdSocket}};
  const auto hold = [&](os::Child child) {
    const uint64_t start_time = os::StartTime(child.pid).value_or(0);
    return std::unique_ptr<OwnProcesses>(
        new OwnProcesses(around, std::move(owner), std::move(child), start_time,
                         /*is_child=*/true, std::move(sockets->first), cgroup));
  };
  if (user == nullptr) {
    auto child = os::Spawn(spec);
    if (!child.ok()) return child.status();
    return hold(*std::move(child));
  }
  spec.new_session = true;  // of our terminal, too, it has nothing
  auto pending = os::SpawnAs(spec);
  if (!pending.ok()) return pending.status();
  std::unique_ptr<OwnProcesses> processes = hold(std::move(pending->child));
  processes->user_ = *user;
  processes->beginning_ = std::make_unique<Beginning>(around.loop, *std::move(pending));
  processes->words_ = std::make_unique<ShepherdWords>(
      around.loop, std::move(words.first),
      absl::StrCat("shepherd ", processes->child_.pid, " of ", Escape(user->name, 64)));
  return processes;
}

std::unique_ptr<OwnProcesses> OwnProcesses::Adopt(Surroundings around, Owner owner,
                                                  const std::string& job_id, uint32_t attempt,
                                                  Remains remains) {
  std::unique_ptr<OwnProcesses> processes(
      new OwnProcesses(around, std::move(owner), std::move(remains.shepherd), remains.start_time,
                       /*is_child=*/false, std::move(remains.socket), std::move(remains.cgroup)));
  processes->job_id_ = job_id;
  processes->attempt_ = attempt;
  processes->in_its_place_ = std::move(remains.in_its_place);
  return processes;
}

OwnProcesses::OwnProcesses(Surroundings around, Owner owner, os::Child child, uint64_t start_time,
                           bool is_child, os::UniqueFd socket, std::string cgroup)
    : around_(around),
      owner_(std::move(owner)),
      child_(std::move(child)),
      start_time_(start_time),
      is_child_(is_child),
      socket_(std::move(socket)),
      cgroup_(std::move(cgroup)),
      ended_(!child_.pidfd),
      again_(around_.loop),
      patience_(kEndPatience),
      look_{kMostOfLook} {
  if (ended_) return;
  exit_watch_ = std::make_unique<loop::FdWatch>(around_.loop, child_.pidfd.get());
  Watch();
}

// It ends by itself when its socket closes; somebody must reap it then, or kill it.
OwnProcesses::~OwnProcesses() {
  *alive_ = false;
  if (ended_) return;
  struct Rest {
    Rest(loop::Loop& loop, os::UniqueFd fd)
        : pidfd(std::move(fd)), watch(loop, pidfd.get()), patience(loop) {}
    os::UniqueFd pidfd;
    loop::FdWatch watch;
    loop::Timer patience;
    std::shared_ptr<const bool> presence;
  };
  exit_watch_.reset();  // a descriptor has one watch at a time
  auto rest = std::make_shared<Rest>(around_.loop, std::move(child_.pidfd));
  rest->presence = std::move(presence_);
  rest->watch.OnReadable([rest, is_child = is_child_] {
    rest->patience.Cancel();
    if (is_child) (void)os::TryReap(rest->pidfd.get());
  });
  rest->patience.After(patience_, [rest = rest.get(), cgroup = cgroup_] {
    log::Warn("killing a shepherd that did not end by itself");
    (void)os::SendSignal(rest->pidfd.get(), SIGKILL);
    if (!cgroup.empty()) os::Cgroup(cgroup).Kill();
  });
}

void OwnProcesses::WhenStarted(OnStarted done) {
  if (beginning_ == nullptr) return done(absl::OkStatus());
  beginning_->done = std::move(done);
  beginning_->watch.OnReadable([this] { Reported(); });
  beginning_->limit.After(kStartLimit, [this] {
    KillShepherd();
    const std::unique_ptr<Beginning> late = std::move(beginning_);
    late->done(absl::DeadlineExceededError(
        "its process has not run the program within 5 s: it was stopped, or the program's file "
        "system does not answer; it was killed"));
  });
}

void OwnProcesses::Reported() {
  std::optional<absl::Status> report = beginning_->pending.Report();
  if (!report) return beginning_->watch.OnReadable([this] { Reported(); });
  const std::unique_ptr<Beginning> over = std::move(beginning_);
  if (!report->ok()) KillShepherd();  // it ends by itself, unless it is stopped
  over->done(*std::move(report));     // may destroy us
}

void OwnProcesses::WhenShepherdEnded(OnEnded done) {
  if (ended_) return done(how_ended_);
  when_ended_ = std::move(done);
}

void OwnProcesses::Watch() {
  exit_watch_->OnReadable([this] { Reap(); });
}

void OwnProcesses::Reap() {
  absl::StatusOr<std::optional<os::ExitStatus>> status = absl::NotFoundError("it has ended");
  if (is_child_) status = os::TryReap(child_.pidfd.get());
  if (status.ok() && !status->has_value()) return Watch();
  ended_ = true;
  how_ended_ = status.ok() ? Describe(**status) : std::string(status.status().message());
  if (when_ended_) std::exchange(when_ended_, nullptr)(how_ended_);  // may destroy us
}

void OwnProcesses::SetPart(const std::string& job_id, uint32_t attempt, uint32_t node_rank) {
  job_id_ = job_id;
  attempt_ = attempt;
  part_cgroup_ = os::JobCgroupName(job_id, attempt, node_rank);
}

void OwnProcesses::Save(v1::JobRecord& record) const {
  record.set_uid(owner_.uid);
  record.set_owner(owner_.name);
  record.set_shepherd_pid(static_cast<uint32_t>(child_.pid));
  record.set_shepherd_start_time(start_time_);
  record.set_cgroup(cgroup_);
}

// Of what it and its workers have started. An agent that serves one job only has all of it below
// itself, as what the shepherd left comes to it.
std::vector<os::ProcessInfo> OwnProcesses::Marked() const {
  if (job_id_.empty()) return {};
  return os::FindByEnvironment(owner_.uid, Marks(), &look_, Mark());
}

std::vector<std::string> OwnProcesses::Marks() const {
  return {absl::StrCat("DTRAIN_JOB_ID=", job_id_), absl::StrCat("DTRAIN_ATTEMPT=", attempt_)};
}

// Of the shepherd; empty: it is not known. While an agent was away, its launcher may have run the
// same attempt by an agent of its own.
std::string OwnProcesses::Mark() const {
  return start_time_ == 0 ? "" : os::ProcessMark(child_.pid, start_time_);
}

// Of the workers, where the shepherd makes it, or has made it under a name that we do not know;
// empty: it cannot, or has no job yet. In a cgroup of its own it can only be its own. Among those
// of other users' jobs it may be another's: its name is made of what the launcher and the shepherd
// say.
std::string OwnProcesses::WorkersCgroup() const {
  if (part_cgroup_.empty()) return cgroup_;
  if (!cgroup_.empty()) return absl::StrCat(cgroup_, "/", part_cgroup_);
  if (user_) return "";
  auto parent = os::FindWritableCgroup();
  return parent.ok() ? absl::StrCat(*parent, "/", part_cgroup_) : "";
}

std::vector<uint32_t> OwnProcesses::Living() const {
  std::vector<uint32_t> out;
  const auto add = [&](pid_t pid) {
    if (ended_ || pid != child_.pid) out.push_back(static_cast<uint32_t>(pid));
  };
  for (const os::ProcessInfo& info :
       around_.reach == Reach::kBelow ? os::Descendants(getpid()) : Marked()) {
    add(info.pid);
  }
  if (const std::string cgroup = WorkersCgroup(); !cgroup.empty()) {
    for (pid_t pid : os::Cgroup(cgroup).Processes()) add(pid);
  }
  return out;
}

void OwnProcesses::KillShepherd() {
  if (!ended_) (void)os::SendSignal(child_.pidfd.get(), SIGKILL);
  if (in_its_place_) (void)os::SendSignal(in_its_place_.get(), SIGKILL);
  if (!cgroup_.empty()) os::Cgroup(cgroup_).Kill();
}

void OwnProcesses::KillLiving() {
  const TimePoint begin = around_.loop.Now();
  if (begin < around_.quarantine.LooksFrom(owner_.uid)) return;
  std::vector<os::ProcessInfo> all;
  for (uint32_t pid : Living()) {
    if (auto process = os::FindProcess(static_cast<pid_t>(pid))) all.push_back(*process);
  }
  (void)around_.quarantine.Kill(around_.loop.Now(), job_id_, owner_, all);
  around_.quarantine.Looked(owner_.uid, begin, around_.loop.Now(), kPausesOfKills);
}

// All in one look: what it misses lives until EndAll, which waits for the removal of containers.
void OwnProcesses::KillMarked() {
  const TimePoint begin = around_.loop.Now();
  if (job_id_.empty() || begin < around_.quarantine.LooksFrom(owner_.uid)) return;
  (void)os::Kill(os::FindByEnvironment(owner_.uid, Marks(), nullptr, Mark()));
  around_.quarantine.Looked(owner_.uid, begin, around_.loop.Now(), kPausesOfKills);
}

void OwnProcesses::EndAll(loop::Task done) {
  when_all_ended_ = std::move(done);
  look_.next = 0;
  const TimePoint now = around_.loop.Now();
  const TimePoint from = std::max(now, around_.quarantine.LooksFrom(owner_.uid));
  if (from == now) return TryToEnd(now + kEndBound);
  KillShepherd();
  again_.At(from, [this, from] { TryToEnd(from + kEndBound); });
}

// The shepherd's death signal takes its direct children; what these had started is in their cgroup,
// or has become our own descendant. The shepherd may live on, stopped or hanging.
void OwnProcesses::TryToEnd(TimePoint deadline) {
  const TimePoint begin = around_.loop.Now();
  // As long as it lives, what it has is not found.
  bool left = !ended_ || (in_its_place_ && !HasEnded(in_its_place_.get()));
  std::vector<os::ProcessInfo> all;
  for (uint32_t pid : Living()) {
    if (auto process = os::FindProcess(static_cast<pid_t>(pid))) all.push_back(*process);
  }
  if (!ended_) all.push_back({child_.pid, start_time_, '?'});
  for (const os::ProcessInfo& process : all) killed_.insert(static_cast<uint32_t>(process.pid));
  KillShepherd();
  left = around_.quarantine.Kill(around_.loop.Now(), job_id_, owner_, all) > 0 || left;
  for (const std::string& path : {WorkersCgroup(), cgroup_}) {
    if (path.empty()) continue;
    const os::Cgroup cgroup(path);
    cgroup.Kill();
    left = left || cgroup.Populated();
    if (!left) cgroup.Remove().IgnoreError();  // also when none was made
  }
  // Processes that an earlier part has seen may have forked since.
  found_ = found_ || left;
  in_parts_ = in_parts_ || look_.next != 0;
  left = look_.next != 0 || std::exchange(found_, false);
  const TimePoint now = around_.loop.Now();
  if (left && now < (in_parts_ ? deadline + kLookBound : deadline)) {
    // Other users have as much time, however many of this one's jobs end at once.
    around_.quarantine.Looked(owner_.uid, begin, now, 1);
    const Duration pause =
        std::max<Duration>(kEndPause, around_.quarantine.LooksFrom(owner_.uid) - now);
    return again_.After(pause, [this, end = deadline + (pause - kEndPause)] { TryToEnd(end); });
  }
  if (left) log::Error(absl::StrCat("job ", job_id_, ": some of its processes cannot be killed"));
  if (start_time_ != 0) {
    absl::Status removed =
        os::RemoveScratchFolders(os::ScratchPlaces(), child_.pid, start_time_, owner_.uid);
    // Into the home of another user the agent does not go: it may be on a server that hangs.
    const auto staged = user_ ? std::string() : staged::UserFolder().value_or("");
    if (!staged.empty()) {
      removed.Update(os::RemoveScratchFolders({staged::TreesIn(staged)}, child_.pid, start_time_,
                                              owner_.uid, staged::kTreeLimit));
    }
    if (!removed.ok()) log::Warn(absl::StrCat("job ", job_id_, ": cannot ", removed.message()));
  }
  around_.quarantine.Looked(owner_.uid, begin, around_.loop.Now(), 1);
  around_.loop.Post([this, alive = alive_] {
    if (*alive) std::exchange(when_all_ended_, nullptr)();  // may destroy us
  });
}

}  // namespace dtrain::spawn
