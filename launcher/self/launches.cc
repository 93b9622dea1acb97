// SPDX-License-Identifier: Apache-2.0
#include "launcher/self/launches.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <list>
#include <system_error>
#include <utility>

#include "common/loop/loop.h"
#include "common/os/fd.h"
#include "common/os/pidfd.h"
#include "common/os/signals.h"
#include "common/os/spawn.h"
#include "launcher/output/line_splitter.h"

namespace dtrain::self {
namespace {

// A result file without end must not take all memory.
constexpr size_t kResultLimit = 256 << 20;

// Reads what is there now; false at end of file or after an error.
bool Drain(int fd, absl::AnyInvocable<void(absl::string_view bytes)>& take) {
  char buffer[64 << 10];
  while (true) {
    const ssize_t n = read(fd, buffer, sizeof(buffer));
    if (n > 0) {
      take(absl::string_view(buffer, static_cast<size_t>(n)));
    } else if (n == 0 || (errno != EINTR && errno != EAGAIN)) {
      return false;
    } else if (errno == EAGAIN) {
      return true;
    }
  }
}

// The reading end of one pipe of the child.
class Source {
 public:
  Source(loop::Loop& loop, os::UniqueFd fd, absl::AnyInvocable<void(absl::string_view)> take)
      : fd_(std::move(fd)), watch_(loop, fd_.get()), take_(std::move(take)) {
    Wait();
  }
  // What the child wrote before it ended, though no event told of it yet.
  void TakeRest() {
    if (open_) open_ = Drain(fd_.get(), take_);
  }

 private:
  void Wait() {
    watch_.OnReadable([this] {
      open_ = Drain(fd_.get(), take_);
      if (open_) Wait();
    });
  }

  os::UniqueFd fd_;
  loop::FdWatch watch_;
  absl::AnyInvocable<void(absl::string_view)> take_;
  bool open_ = true;
};

}  // namespace

std::string OwnPath() {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe", error);
  // Replaced by a newer build while it runs, it is still to be had by the link.
  return error || !std::filesystem::exists(path, error) ? "/proc/self/exe" : path.string();
}

absl::StatusOr<LaunchEnd> RunLaunch(const std::vector<std::string>& argv,
                                    const std::vector<std::string>& environment,
                                    absl::AnyInvocable<void(absl::string_view line)> on_line) {
  auto printed = os::Pipe();
  if (!printed.ok()) return printed.status();
  auto result = os::Pipe();
  if (!result.ok()) return result.status();
  for (const int fd : {printed->first.get(), result->first.get()}) {
    if (absl::Status status = os::SetNonBlocking(fd, true); !status.ok()) return status;
  }
  LaunchEnd end;
  loop::Loop loop;
  int child = -1;
  // Before the child is there, so that no signal finds us unprepared and leaves it alone.
  std::list<loop::SignalWatch> watches;
  for (int number : os::NotIgnored({SIGINT, SIGTERM, SIGHUP})) {
    watches.emplace_back(loop, std::initializer_list<int>{number}, [&](int signal) {
      end.signalled = true;
      if (child >= 0) (void)os::SendSignal(child, signal);
    });
  }
  os::SpawnSpec spec;
  spec.argv = argv;
  spec.env = environment;
  spec.stdout_fd = printed->second.get();
  spec.stderr_fd = STDERR_FILENO;
  spec.extra_fds = {{result->second.get(), kResultFd}};
  spec.parent_death_signal = SIGTERM;
  absl::StatusOr<os::Child> spawned = os::Spawn(spec);
  if (!spawned.ok()) return spawned.status();
  child = spawned->pidfd.get();
  printed->second.Reset();
  result->second.Reset();

  output::LineSplitter lines;
  const auto take_line = [&](absl::string_view line, bool) { on_line(line); };
  Source text(loop, std::move(printed->first),
              [&](absl::string_view bytes) { lines.Add(bytes, take_line); });
  Source document(loop, std::move(result->first), [&](absl::string_view bytes) {
    if (end.result.size() + bytes.size() <= kResultLimit)
      end.result.append(bytes.data(), bytes.size());
  });
  loop::FdWatch ended(loop, child);
  ended.OnReadable([&] { loop.Stop(); });
  loop.Run();
  text.TakeRest();
  document.TakeRest();
  lines.Flush(take_line);
  const absl::StatusOr<os::ExitStatus> status = os::WaitAndReap(child);
  if (!status.ok()) return status.status();
  end.code = status->signal != 0 ? 128 + status->signal : status->code;
  return end;
}

}  // namespace dtrain::self
