// SPDX-License-Identifier: Apache-2.0
#include "agent/bridge.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/about.h"
#include "agent/keep.h"
#include "agent/resident.h"
#include "agent/session/agent_service.h"
#include "agent/session/node_readers.h"
#include "agent/spawn/own_spawner.h"
#include "common/base/exit_code.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"
#include "common/log/log.h"
#include "common/loop/byte_pump.h"
#include "common/loop/loop.h"
#include "common/loop/signal_sender.h"
#include "common/loop/threads.h"
#include "common/os/fd.h"
#include "common/os/heap.h"
#include "common/os/kernel.h"
#include "common/os/leave.h"
#include "common/os/process_facts.h"
#include "common/os/process_tree.h"
#include "common/os/signals.h"
#include "common/rpc/channel.h"

namespace dtrain::agent {
namespace {

// The launcher's transport waits for this line and takes every byte after it for gRPC's.
constexpr char kReadyLine[] = "DTRAIN-AGENT/1 ready version=" DTRAIN_VERSION "\n";
// Instead of it; a reason follows.
constexpr char kKernelLine[] = "DTRAIN-AGENT/1 error code=kernel reason=";
// For the last message to a launcher that is still there: it closes the stream when it has it.
constexpr Duration kFarewell = std::chrono::seconds(1);

bool WriteAll(int fd, absl::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

// Members in start order, so that they stop in reverse.
class Bridge {
 public:
  Bridge(std::unique_ptr<spawn::OneSpawner> spawner, loop::Loop& loop, std::string notice,
         bool last_asked)
      : loop_(loop),
        readers_(loop),
        spawner_(std::move(spawner)),
        sessions_(loop,
                  session::Identity{rpc::kProtocolVersion, DTRAIN_VERSION, /*resumable=*/false,
                                    std::move(notice), Duration::zero(), last_asked},
                  /*state_directory=*/"", *spawner_, readers_.readers(), [this] { Leave(); }),
        service_(loop, sessions_, OwnIdentity("its agent")),
        farewell_(loop) {
    sessions_.inquiries().SetAbout(AboutNode);
    sessions_.SetSuccessor(
        {[this](auto found) { FindPlace(std::move(found)); }, [this] { loop_.Stop(); }});
  }

  // The stream is one socket, our stdin. gRPC works on a duplicate; the original tells when a
  // launcher has gone that never opened a session.
  void ServeSocket() {
    hangup_.emplace(loop_, STDIN_FILENO);
    hangup_->OnHangup([this] {
      if (!sessions_.busy()) loop_.Stop();
    });
    server_.emplace(service_, os::UniqueFd(dup(STDIN_FILENO)));
  }
  // The stream is a pair of pipes, pumped to and from gRPC's socket.
  absl::Status ServePipes() {
    auto pair = os::SocketPair();
    if (!pair.ok()) return pair.status();
    near_end_ = std::move(pair->first);
    // One descriptor for each pump: epoll takes a descriptor once.
    near_end_out_.Reset(dup(near_end_.get()));
    if (!near_end_out_) return PosixError(errno, "duplicate a socket");
    in_.emplace(loop_, STDIN_FILENO, near_end_.get(), [this](absl::Status) {
      // gRPC sees the end of the stream and the session starts to end its workers.
      shutdown(near_end_.get(), SHUT_WR);
      if (!sessions_.busy()) loop_.Stop();
    });
    out_.emplace(loop_, near_end_out_.get(), STDOUT_FILENO, [this](absl::Status) {
      shutdown(near_end_.get(), SHUT_RDWR);
      if (!sessions_.busy()) loop_.Stop();
    });
    server_.emplace(service_, std::move(pair->second));
    return absl::OkStatus();
  }

  // The launcher hears of it now, and ends the job's workers elsewhere while those here end. It
  // says goodbye when all is told.
  void LeaveNode(const std::string& why) {
    if (!sessions_.busy()) return HangUp();
    sessions_.LeaveNode(why);
  }
  // As if the launcher had gone: the session ends its workers, and kills what its shepherd does not
  // end in time; then we leave. The launcher sees the end of the stream now.
  void HangUp() {
    if (!sessions_.busy()) {
      spawner_->KillUnused();
      return loop_.Stop();
    }
    shutdown(near_end_ ? near_end_.get() : STDIN_FILENO, SHUT_RDWR);
    if (!near_end_) return;
    in_.reset();
    out_.reset();
    const os::UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
    if (!null) return;  // the stream ends when we leave
    (void)dup2(null.get(), STDIN_FILENO);
    (void)dup2(null.get(), STDOUT_FILENO);
  }

 private:
  // Where the user's private agent looks for jobs. The disk of a home may stall.
  void FindPlace(std::function<void(absl::StatusOr<std::string>)> found) {
    auto thread = loop::StartThread("find the private agent's folder", [this, found] {
      loop_.Post([found, place = KeepDirectory()] { found(place); });
    });
    if (!thread.ok()) return found(thread.status());
    thread->detach();
  }
  // The last word is with gRPC; with pipes it has yet to pass the pump, and the launcher closes
  // the stream when it has it.
  void Leave() {
    farewell_.After(out_.has_value() ? kFarewell : Duration::zero(), [this] { loop_.Stop(); });
  }

  loop::Loop& loop_;
  session::NodeReaders readers_;
  const std::unique_ptr<spawn::OneSpawner> spawner_;
  session::Sessions sessions_;
  session::AgentService service_;
  loop::Timer farewell_;
  std::optional<loop::FdWatch> hangup_;
  os::UniqueFd near_end_;
  os::UniqueFd near_end_out_;
  std::optional<loop::BytePump> in_;
  std::optional<loop::BytePump> out_;
  std::optional<rpc::StreamServer> server_;
};

// "0.1.0 (3f2a91c04d77)" of a BuildId.
std::string ShortBuild(absl::string_view build) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(absl::StripTrailingAsciiWhitespace(build), absl::MaxSplits(' ', 1));
  return absl::StrCat(Escape(parts.first, 32), " (", Escape(parts.second.substr(0, 12), 12), ")");
}

// To the launcher of a job that goes on without the resident agent of its node.
std::string BypassNotice(const FoundResident& found) {
  std::string why;
  absl::string_view what_to_do;
  if (!found.silence.empty()) {
    why = absl::StrCat("does not answer (", found.silence, ")");
    what_to_do = "see its log, and launch again when it runs";
  } else if (found.refuses_root) {
    why = "runs no jobs of root's";
    what_to_do =
        "launch as another user, or say allow-root = yes in /etc/dtrain/spawner.conf there";
  } else if (!found.other_build.empty()) {
    why = absl::StrCat("is build ", ShortBuild(found.other_build), " and this dtrain is build ",
                       ShortBuild(BuildId()));
    what_to_do = "install the same release on both";
  } else {
    return "";
  }
  return absl::StrCat("the resident agent here ", why,
                      ", so the job runs without it: GPUs and cores that it has reserved for ",
                      "other jobs may be used twice, and the job ends when its connection breaks; ",
                      what_to_do);
}

// SIGUSR1 and SIGUSR2, for the workers here. Slurm (--signal) gives them to a step's first process,
// which is this one, or to all processes of the step. The shepherd, which ours come to last, then
// knows that the workers have theirs.
class UserSignalRelay {
 public:
  explicit UserSignalRelay(loop::Loop& loop) : usr1_(loop), usr2_(loop) {}

  void Take(int signal) {
    (signal == SIGUSR1 ? usr1_ : usr2_).After(kOthersHaveTheirs, [signal] { PassOn(signal); });
  }

 private:
  static constexpr Duration kOthersHaveTheirs = std::chrono::milliseconds(500);

  static void PassOn(int signal) {
    std::vector<os::ProcessInfo> shepherds;
    for (const os::ProcessInfo& info : os::Descendants(getpid())) {
      if (info.parent == getpid() && os::CommandName(info.pid) == "dtrain-shepherd") {
        shepherds.push_back(info);
      }
    }
    os::Signal(shepherds, signal);
  }

  loop::Timer usr1_, usr2_;
};

int Fail(const absl::Status& status) {
  log::Error(status.message());
  return kExitStartAgents;
}

}  // namespace

// All that passes between the launcher and the node's resident agent. It ends with either.
int RunRelay(os::UniqueFd resident, bool one_socket) {
  loop::Loop loop;
  os::UniqueFd resident_out(fcntl(resident.get(), F_DUPFD_CLOEXEC, 0));
  os::UniqueFd launcher_out(fcntl(one_socket ? STDIN_FILENO : STDOUT_FILENO, F_DUPFD_CLOEXEC, 0));
  if (!resident_out || !launcher_out) return Fail(PosixError(errno, "duplicate a socket"));
  loop::BytePump up(loop, STDIN_FILENO, resident.get(), [&](absl::Status) { loop.Stop(); });
  loop::BytePump down(loop, resident_out.get(), launcher_out.get(),
                      [&](absl::Status) { loop.Stop(); });
  loop::SignalWatch signals(loop, {SIGTERM, SIGINT, SIGHUP}, [&](int) { loop.Stop(); });
  loop.Run();
  os::Leave(kExitOk);
}

// One that runs on without us: the node's resident agent or, of a job that outlives its connection,
// the user's private one. While that has jobs it is the one for others too: a launcher that comes
// back finds its job where it has left it. A new one would know of no job: for a launcher that
// comes back there is one only where one was.
absl::StatusOr<FoundResident> FindAgent(BridgePurpose purpose) {
  const bool resumes = purpose == BridgePurpose::kResume || purpose == BridgePurpose::kResumeKept;
  const bool keeps = purpose == BridgePurpose::kKeep || purpose == BridgePurpose::kResumeKept;
  FoundResident found;
  if (!keeps || !HasKeptJobs()) {
    auto resident = ConnectToResident(/*any_build=*/resumes,
                                      /*for_launch=*/!resumes && purpose != BridgePurpose::kAsk);
    if (!resident.ok() || resident->stream) return resident;
    found = *std::move(resident);
  }
  const bool start = purpose == BridgePurpose::kKeep || (keeps && HasKeptJobs());
  if (keeps || purpose == BridgePurpose::kAsk) {
    auto kept = ConnectToKept(start);
    if (!kept.ok() && start) return kept.status();
    if (kept.ok()) found.stream = *std::move(kept);
  }
  return found;
}

int RunBridge(bool one_socket, BridgePurpose purpose) {
  os::FailWritesWithoutSignals();
  os::ReuseBuffers();
  if (const std::string old = os::KernelTooOld(); !old.empty()) {
    (void)WriteAll(one_socket ? STDIN_FILENO : STDOUT_FILENO, absl::StrCat(kKernelLine, old, "\n"));
    return Fail(absl::FailedPreconditionError(old));
  }
  auto resident = FindAgent(purpose);
  if (!resident.ok()) return Fail(resident.status());
  if (resident->stream) {
    if (!WriteAll(one_socket ? STDIN_FILENO : STDOUT_FILENO, kReadyLine)) {
      return Fail(PosixError(errno, "greet the launcher"));
    }
    return RunRelay(std::move(resident->stream), one_socket);
  }
  absl::Status subreaper = os::BecomeSubreaper();
  if (!subreaper.ok()) log::Warn(subreaper.message());
  loop::Loop loop;
  // Before gRPC starts its threads, and while the launcher is still on its way.
  auto spawner = purpose == BridgePurpose::kAsk
                     ? spawn::OneSpawner::Empty()
                     : spawn::OneSpawner::Start(loop, spawn::kOwnProgram);
  if (!spawner.ok()) return Fail(spawner.status());
  Bridge bridge(*std::move(spawner), loop, BypassNotice(*resident),
                purpose == BridgePurpose::kResumeKept);
  if (!WriteAll(one_socket ? STDIN_FILENO : STDOUT_FILENO, kReadyLine)) {
    return Fail(PosixError(errno, "greet the launcher"));
  }
  if (one_socket) {
    bridge.ServeSocket();
  } else if (absl::Status status = bridge.ServePipes(); !status.ok()) {
    return Fail(status);
  }
  // A plain kill is a notice that this host goes away: workers are ended first, here and elsewhere.
  // A second one does not wait for that. Of a terminal that is gone the launcher need not be told.
  bool told = false;
  loop::SignalWatch signals(loop, {SIGTERM, SIGINT, SIGHUP}, [&](int signal) {
    if (std::exchange(told, true)) return loop.Stop();
    if (signal == SIGHUP) return bridge.HangUp();
    bridge.LeaveNode(absl::StrCat("dtrain there got ", loop::NameSignal(signal)));
  });
  UserSignalRelay relay(loop);
  loop::SignalWatch user_signals(loop, {SIGUSR1, SIGUSR2}, [&](int got) { relay.Take(got); });
  loop.Run();
  // A shepherd that still runs sees its socket close, and ends its workers.
  os::Leave(kExitOk);
}

}  // namespace dtrain::agent
