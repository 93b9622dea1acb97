// SPDX-License-Identifier: Apache-2.0
#include "agent/session/shepherd_process.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/text.h"
#include "common/log/log.h"
#include "common/os/cgroup.h"
#include "common/os/environment.h"
#include "common/os/fd.h"
#include "common/os/pidfd.h"
#include "common/os/process_tree.h"

namespace dtrain::session {
namespace {

// From the fork to the program: a millisecond, more where the machine is busy.
constexpr Duration kStartLimit = std::chrono::seconds(5);
// For a shepherd without workers to notice that its agent has no more for it.
constexpr Duration kEndPatience = std::chrono::seconds(10);

// Of requests that it has not read: a launcher waits for its answers. Twice the longest.
constexpr size_t kMostQueued = 128 << 20;

std::string Describe(const os::ExitStatus& status) {
  return status.signal != 0 ? absl::StrCat("killed by signal ", status.signal)
                            : absl::StrCat("exited with code ", status.code);
}

}  // namespace

struct ShepherdProcess::Beginning {
  Beginning(loop::Loop& loop, os::PendingChild p)
      : pending(std::move(p)), watch(loop, pending.report.get()), limit(loop) {}
  os::PendingChild pending;
  loop::FdWatch watch;
  loop::Timer limit;
  OnStarted done;
};

absl::StatusOr<std::unique_ptr<ShepherdProcess>> ShepherdProcess::Start(loop::Loop& loop,
                                                                        const std::string& program,
                                                                        const os::Account* user,
                                                                        const std::string& cgroup) {
  auto sockets = os::SocketPair();
  if (!sockets.ok()) return sockets.status();
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
  if (user == nullptr) {
    auto child = os::Spawn(spec);
    if (!child.ok()) return child.status();
    return std::unique_ptr<ShepherdProcess>(new ShepherdProcess(
        loop, *std::move(child), std::move(sockets->first), /*is_child=*/true, cgroup));
  }
  spec.new_session = true;  // of our terminal, too, it has nothing
  auto pending = os::SpawnAs(spec);
  if (!pending.ok()) return pending.status();
  os::Child child = std::move(pending->child);
  std::unique_ptr<ShepherdProcess> shepherd(new ShepherdProcess(
      loop, std::move(child), std::move(sockets->first), /*is_child=*/true, cgroup));
  shepherd->user_ = *user;
  shepherd->beginning_ = std::make_unique<Beginning>(loop, *std::move(pending));
  shepherd->words_ = std::make_unique<ShepherdWords>(
      loop, std::move(words.first),
      absl::StrCat("shepherd ", shepherd->pid(), " of ", Escape(user->name, 64)));
  return shepherd;
}

std::unique_ptr<ShepherdProcess> ShepherdProcess::Adopt(loop::Loop& loop, os::Child process,
                                                        os::UniqueFd socket,
                                                        const std::string& cgroup) {
  return std::unique_ptr<ShepherdProcess>(
      new ShepherdProcess(loop, std::move(process), std::move(socket), /*is_child=*/false, cgroup));
}

ShepherdProcess::ShepherdProcess(loop::Loop& loop, os::Child child, os::UniqueFd socket,
                                 bool is_child, std::string cgroup)
    : loop_(loop),
      child_(std::move(child)),
      start_time_(os::StartTime(child_.pid).value_or(0)),
      is_child_(is_child),
      cgroup_(std::move(cgroup)),
      exit_watch_(std::make_unique<loop::FdWatch>(loop, child_.pidfd.get())),
      patience_(kEndPatience) {
  channel_ = std::make_unique<loop::FrameChannel>(
      loop, std::move(socket),
      [this](absl::string_view frame, os::UniqueFd fd) {
        v1::ShepherdEvent event;
        if (!event.ParseFromArray(frame.data(), static_cast<int>(frame.size()))) {
          Gone("it sent a message that cannot be read");
        } else if (on_event_) {
          // It may name others to listen from inside.
          OnEvent on_event = std::exchange(on_event_, nullptr);
          std::weak_ptr<bool> alive = alive_;
          on_event(std::move(event), std::move(fd));
          if (!alive.expired() && !on_event_) on_event_ = std::move(on_event);
        }
      },
      [this](absl::Status why) {
        // An orderly end of file means that the process ends; Reap then tells how.
        if (!why.ok()) Gone(std::string(why.message()));
      });
  exit_watch_->OnReadable([this] { Reap(); });
}

// It ends by itself when its socket closes; somebody must reap it then, or kill it.
ShepherdProcess::~ShepherdProcess() {
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
  auto rest = std::make_shared<Rest>(loop_, std::move(child_.pidfd));
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

void ShepherdProcess::Kill() {
  if (!ended_) (void)os::SendSignal(child_.pidfd.get(), SIGKILL);
  if (!cgroup_.empty()) os::Cgroup(cgroup_).Kill();
}

void ShepherdProcess::Break(std::string why) {
  log::Warn(absl::StrCat("killing shepherd ", child_.pid, ": ", why));
  Kill();
  Gone(std::move(why));
}

void ShepherdProcess::WhenStarted(OnStarted done) {
  if (beginning_ == nullptr) return done(absl::OkStatus());
  beginning_->done = std::move(done);
  beginning_->watch.OnReadable([this] { Reported(); });
  beginning_->limit.After(kStartLimit, [this] {
    Kill();
    const std::unique_ptr<Beginning> late = std::move(beginning_);
    late->done(absl::DeadlineExceededError(
        "its process has not run the program within 5 s: it was stopped, or the program's file "
        "system does not answer; it was killed"));
  });
}

void ShepherdProcess::Reported() {
  std::optional<absl::Status> report = beginning_->pending.Report();
  if (!report) return beginning_->watch.OnReadable([this] { Reported(); });
  const std::unique_ptr<Beginning> over = std::move(beginning_);
  if (!report->ok()) Kill();       // it ends by itself, unless it is stopped
  over->done(*std::move(report));  // may destroy us
}

void ShepherdProcess::Listen(OnEvent on_event, OnGone on_gone) {
  on_event_ = std::move(on_event);
  on_gone_ = std::move(on_gone);
  if (gone_) std::exchange(on_gone_, nullptr)(gone_why_);
}

absl::Status ShepherdProcess::Send(const v1::ShepherdRequest& request, int fd) {
  if (channel_->queued_bytes() > kMostQueued && !gone_) {
    log::Warn(absl::StrCat("killing shepherd ", child_.pid, ": it reads nothing of ",
                           channel_->queued_bytes(), " bytes"));
    Kill();
    return absl::OkStatus();  // its end is told as every other
  }
  return channel_->Send(request.SerializeAsString(), fd);
}

void ShepherdProcess::WhenEnded(loop::Task done) {
  if (ended_) {
    done();
  } else {
    when_ended_ = std::move(done);
  }
}

void ShepherdProcess::Reap() {
  absl::StatusOr<std::optional<os::ExitStatus>> status = absl::NotFoundError("it has ended");
  if (is_child_) status = os::TryReap(child_.pidfd.get());
  if (status.ok() && !status->has_value()) {
    exit_watch_->OnReadable([this] { Reap(); });
    return;
  }
  ended_ = true;
  // What it said last is still in the socket and must be heard before its end is acted upon.
  const std::weak_ptr<bool> alive = alive_;
  channel_->ReadToEnd();
  if (alive.expired()) return;
  Gone(status.ok() ? Describe(**status) : std::string(status.status().message()));
  if (when_ended_) std::exchange(when_ended_, nullptr)();
}

void ShepherdProcess::Gone(std::string why) {
  if (std::exchange(gone_, true)) return;
  gone_why_ = std::move(why);
  if (on_gone_) std::exchange(on_gone_, nullptr)(gone_why_);
}

}  // namespace dtrain::session
