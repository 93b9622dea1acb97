// SPDX-License-Identifier: Apache-2.0
#include "agent/session/shepherd_process.h"

#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log/log.h"
#include "common/os/cgroup.h"
#include "common/os/fd.h"
#include "common/os/pidfd.h"

namespace dtrain::session {
namespace {

std::vector<std::string> OwnEnvironment() {
  std::vector<std::string> env;
  for (char** entry = environ; *entry != nullptr; ++entry) env.emplace_back(*entry);
  return env;
}

std::string Describe(const os::ExitStatus& status) {
  return status.signal != 0 ? absl::StrCat("killed by signal ", status.signal)
                            : absl::StrCat("exited with code ", status.code);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShepherdProcess>> ShepherdProcess::Start(loop::Loop& loop,
                                                                        const std::string& program,
                                                                        os::ForkServer* forks,
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
  const int socket = sockets->second.get();
  const std::vector<std::string> env =
      user != nullptr ? os::LoginEnvironment(*user) : OwnEnvironment();
  absl::StatusOr<os::Child> child = absl::UnavailableError("");
  if (forks != nullptr) {
    child = forks->Fork({socket, directory.get(), user, env});
    if (absl::IsUnavailable(child.status())) {
      log::Warn(absl::StrCat(child.status().message(), "; starts the shepherd without it"));
    }
  }
  if (absl::IsUnavailable(child.status())) {
    os::SpawnSpec spec;
    spec.argv = {program, "shepherd"};
    spec.env = env;
    spec.user = user;
    if (user != nullptr) spec.working_directory = "/";
    spec.cgroup_fd = directory.get();
    spec.stderr_fd = STDERR_FILENO;
    spec.extra_fds = {{socket, os::kForkedSocket}};
    child = os::Spawn(spec);
  }
  if (!child.ok()) return child.status();
  return std::unique_ptr<ShepherdProcess>(new ShepherdProcess(
      loop, *std::move(child), std::move(sockets->first), /*is_child=*/true, cgroup));
}

std::unique_ptr<os::ForkServer> ShepherdProcess::ForkServerOf(const std::string& program) {
  return std::make_unique<os::ForkServer>(
      std::vector<std::string>{program, "shepherds"},
      geteuid() == 0 ? std::vector<std::string>{} : OwnEnvironment());
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
      is_child_(is_child),
      cgroup_(std::move(cgroup)),
      exit_watch_(loop, child_.pidfd.get()) {
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
  exit_watch_.OnReadable([this] { Reap(); });
}

// It ends by itself when its socket closes; somebody must reap it then.
ShepherdProcess::~ShepherdProcess() {
  if (!is_child_ || ended_) return;
  struct Rest {
    Rest(loop::Loop& loop, os::UniqueFd fd) : pidfd(std::move(fd)), watch(loop, pidfd.get()) {}
    os::UniqueFd pidfd;
    loop::FdWatch watch;
  };
  os::UniqueFd pidfd(fcntl(child_.pidfd.get(), F_DUPFD_CLOEXEC, 0));
  if (!pidfd) return;
  auto rest = std::make_shared<Rest>(loop_, std::move(pidfd));
  rest->watch.OnReadable([rest] { (void)os::TryReap(rest->pidfd.get()); });
}

void ShepherdProcess::Listen(OnEvent on_event, OnGone on_gone) {
  on_event_ = std::move(on_event);
  on_gone_ = std::move(on_gone);
  if (gone_) std::exchange(on_gone_, nullptr)(gone_why_);
}

void ShepherdProcess::Send(const v1::ShepherdRequest& request, int fd) {
  channel_->Send(request.SerializeAsString(), fd);
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
    exit_watch_.OnReadable([this] { Reap(); });
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
