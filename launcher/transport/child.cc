// SPDX-License-Identifier: Apache-2.0
#include "launcher/transport/child.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/os/environment.h"
#include "common/os/fd.h"

namespace dtrain::transport {
namespace {

// A killed process that stays (stuck in the kernel) is not waited for longer than this.
constexpr Duration kDeathTakes = std::chrono::seconds(1);

bool WaitForEnd(int pidfd, Duration limit) {
  TimePoint deadline = Clock::now() + limit;
  for (;;) {
    auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd p{pidfd, POLLIN, 0};
    int n = poll(&p, 1, static_cast<int>(std::max<int64_t>(left, 0)));
    if (n > 0) return true;
    if (n == 0 || errno != EINTR) return false;
  }
}

}  // namespace

absl::StatusOr<Child> StartChild(std::vector<std::string> argv, bool stdout_apart) {
  auto stream = os::SocketPair();
  if (!stream.ok()) return stream.status();
  auto error = os::Pipe();
  if (!error.ok()) return error.status();
  if (absl::Status s = os::SetNonBlocking(stream->first.get(), true); !s.ok()) return s;
  if (absl::Status s = os::SetNonBlocking(error->first.get(), true); !s.ok()) return s;
  os::SpawnSpec spec;
  spec.argv = std::move(argv);
  spec.env = os::OwnEnvironment();
  spec.stdin_fd = stream->second.get();
  spec.stdout_fd = stdout_apart ? error->second.get() : stream->second.get();
  spec.stderr_fd = error->second.get();
  spec.new_session = true;
  auto child = os::Spawn(spec);
  if (!child.ok()) return child.status();
  return Child{std::move(*child), std::move(stream->first), std::move(error->first)};
}

TailReader::TailReader(loop::Loop& loop, os::UniqueFd fd, loop::Task on_end)
    : fd_(std::move(fd)),
      watch_(std::make_unique<loop::FdWatch>(loop, fd_.get())),
      on_end_(std::move(on_end)) {
  watch_->OnReadable([this] { Read(); });
}

void TailReader::Read() {
  // A bounded piece at a time: a command that never stops writing must not hold the loop.
  char buffer[65536];
  ssize_t n = read(fd_.get(), buffer, sizeof(buffer));
  if (n > 0) tail_.Add(absl::string_view(buffer, static_cast<size_t>(n)));
  if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))) {
    watch_->OnReadable([this] { Read(); });
    return;
  }
  watch_.reset();
  fd_.Reset();
  auto on_end = std::move(on_end_);
  on_end();
}

void SignalChild(const os::Child& child, int signal, bool whole_group) {
  // It was not reaped, so the number still means its group.
  if (whole_group) kill(-child.pid, signal);
  (void)os::SendSignal(child.pidfd.get(), signal);
}

struct ChildReaper::Orphan {
  Orphan(loop::Loop& loop, os::Child c, std::unique_ptr<TailReader> e, EndPolicy p)
      : child(std::move(c)),
        error(std::move(e)),
        policy(p),
        exit(loop, child.pidfd.get()),
        timer(loop) {}
  os::Child child;
  std::unique_ptr<TailReader> error;
  EndPolicy policy;
  loop::FdWatch exit;
  loop::Timer timer;
};

ChildReaper::ChildReaper(loop::Loop& loop) : loop_(loop) {}

void ChildReaper::Adopt(os::Child child, std::unique_ptr<TailReader> error, EndPolicy policy) {
  orphans_.push_back(std::make_unique<Orphan>(loop_, std::move(child), std::move(error), policy));
  Place place = std::prev(orphans_.end());
  (*place)->exit.OnReadable([this, place] { OnExit(place); });
  (*place)->timer.After(policy.patience, [this, place] { Terminate(place); });
}

void ChildReaper::OnExit(Place place) {
  Orphan& orphan = **place;
  // Before it is reaped, while its number is still the name of its group.
  if (orphan.policy.whole_group) kill(-orphan.child.pid, SIGTERM);
  (void)os::TryReap(orphan.child.pidfd.get());
  orphans_.erase(place);
}

void ChildReaper::Terminate(Place place) {
  Orphan& orphan = **place;
  SignalChild(orphan.child, SIGTERM, orphan.policy.whole_group);
  orphan.timer.After(orphan.policy.term_to_kill,
                     [&orphan] { SignalChild(orphan.child, SIGKILL, orphan.policy.whole_group); });
}

ChildReaper::~ChildReaper() {
  TimePoint closed = Clock::now();
  for (auto& orphan : orphans_) {
    if (WaitForEnd(orphan->child.pidfd.get(),
                   closed + orphan->policy.patience_at_exit - Clock::now())) {
      continue;
    }
    SignalChild(orphan->child, SIGTERM, orphan->policy.whole_group);
  }
  TimePoint start = Clock::now();
  for (auto& orphan : orphans_) {
    Duration left = start + orphan->policy.term_to_kill - Clock::now();
    if (!WaitForEnd(orphan->child.pidfd.get(), left)) {
      SignalChild(orphan->child, SIGKILL, orphan->policy.whole_group);
      if (!WaitForEnd(orphan->child.pidfd.get(), kDeathTakes)) continue;
    }
    if (orphan->policy.whole_group) kill(-orphan->child.pid, SIGTERM);
    (void)os::TryReap(orphan->child.pidfd.get());
  }
}

}  // namespace dtrain::transport
