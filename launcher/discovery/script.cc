// SPDX-License-Identifier: Apache-2.0
#include "launcher/discovery/script.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <initializer_list>
#include <list>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/text.h"
#include "common/os/environment.h"
#include "common/os/fd.h"
#include "common/os/pidfd.h"
#include "common/os/signals.h"
#include "common/os/spawn.h"
#include "launcher/hosts/discovered.h"
#include "launcher/transport/child.h"

namespace dtrain::discovery {
namespace {

constexpr Duration kCommandPatience = std::chrono::seconds(30);
constexpr size_t kMostPrinted = 4 << 20;
constexpr size_t kMostSaid = 64 << 10;

}  // namespace

struct Script::Running {
  // What comes through a pipe, as far as `limit`.
  struct Pipe {
    Pipe(loop::Loop& loop, os::UniqueFd from, size_t most, loop::Task kill)
        : limit(most), fd(std::move(from)), watch(loop, fd.get()), on_full(std::move(kill)) {
      Await();
    }
    void Await() {
      watch.OnReadable([this] {
        if (Drain()) return Await();
        if (is_full() && on_full) on_full();
      });
    }
    // False: nothing more is wanted, or will come.
    bool Drain() {
      char buffer[4096];
      while (!is_full()) {
        const ssize_t n = TEMP_FAILURE_RETRY(read(fd.get(), buffer, sizeof(buffer)));
        if (n < 0) return errno == EAGAIN;
        if (n == 0) return false;
        text.append(buffer, static_cast<size_t>(n));
      }
      return false;
    }
    bool is_full() const { return text.size() > limit; }
    const size_t limit;
    os::UniqueFd fd;
    loop::FdWatch watch;
    loop::Task on_full;
    std::string text;
  };

  Running(loop::Loop& loop, os::Child started, os::UniqueFd out, os::UniqueFd err)
      : child(std::move(started)),
        printed(loop, std::move(out), kMostPrinted, [this] { Kill(); }),
        said(loop, std::move(err), kMostSaid, nullptr),
        ended(loop, child.pidfd.get()) {}
  // Its process group is its own.
  void Kill() const { transport::SignalChild(child, SIGKILL, /*whole_group=*/true); }

  os::Child child;
  Pipe printed, said;
  loop::FdWatch ended;
  bool too_slow = false;
};

Script::Script(loop::Loop& loop, std::string command, std::optional<uint32_t> slots)
    : loop_(loop), command_(std::move(command)), slots_(slots), patience_(loop) {}

Script::~Script() {
  if (running_ == nullptr) return;
  running_->Kill();
  (void)os::WaitAndReap(running_->child.pidfd.get());
}

void Script::Run(OnFound found) {
  found_ = std::move(found);
  if (absl::Status started = Start(); !started.ok()) {
    patience_.After(Duration::zero(), [this, started] { std::exchange(found_, nullptr)(started); });
  }
}

absl::Status Script::Start() {
  auto out = os::Pipe();
  if (!out.ok()) return out.status();
  auto err = os::Pipe();
  if (!err.ok()) return err.status();
  for (const int fd : {out->first.get(), err->first.get()}) {
    if (absl::Status set = os::SetNonBlocking(fd, true); !set.ok()) return set;
  }
  os::SpawnSpec spec;
  spec.argv = {"/bin/sh", "-c", command_};
  spec.env = os::OwnEnvironment();
  spec.stdout_fd = out->second.get();
  spec.stderr_fd = err->second.get();
  spec.parent_death_signal = SIGKILL;
  auto child = os::Spawn(spec);
  if (!child.ok()) return child.status();
  running_ = std::make_unique<Running>(loop_, *std::move(child), std::move(out->first),
                                       std::move(err->first));
  running_->ended.OnReadable([this] { OnEnd(); });
  patience_.After(kCommandPatience, [this] {
    running_->too_slow = true;
    running_->Kill();
  });
  return absl::OkStatus();
}

void Script::OnEnd() {
  patience_.Cancel();
  // What it has left behind would go on printing.
  running_->Kill();
  const std::unique_ptr<Running> running = std::move(running_);
  std::exchange(found_, nullptr)(Read(*running));
}

absl::StatusOr<hosts::HostList> Script::Read(Running& running) const {
  const auto status = os::WaitAndReap(running.child.pidfd.get());
  if (!status.ok()) return status.status();
  running.printed.Drain();
  running.said.Drain();
  const std::string name = absl::StrCat("--discover: \"", Escape(command_, 200), "\" ");
  if (running.printed.is_full()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(name, "printed more than ", kMostPrinted >> 20, " MiB"));
  }
  if (running.too_slow) {
    return absl::DeadlineExceededError(absl::StrCat(
        name, "had not ended after ", kCommandPatience / std::chrono::seconds(1), " s"));
  }
  if (status->code != 0 || status->signal != 0) {
    const std::string said(absl::StripAsciiWhitespace(running.said.text));
    const size_t line = said.rfind('\n');
    return absl::UnavailableError(
        absl::StrCat(name,
                     status->signal != 0 ? absl::StrCat("was killed by signal ", status->signal)
                                         : absl::StrCat("exited with code ", status->code),
                     said.empty() ? "" : ": ",
                     Escape(line == std::string::npos ? said : said.substr(line + 1), 300)));
  }
  auto list = hosts::ParseDiscovered(running.printed.text, slots_);
  if (list.ok()) return list;
  return absl::InvalidArgumentError(
      absl::StrCat(name, "printed a line that is not a host: ", list.status().message()));
}

absl::StatusOr<hosts::HostList> AwaitHosts(const std::string& command,
                                           std::optional<uint32_t> slots, Duration at_most) {
  absl::StatusOr<hosts::HostList> list = hosts::HostList();
  int stopped_by = 0;
  {
    loop::Loop loop;
    Script script(loop, command, slots);
    loop::Timer again(loop);
    std::list<loop::SignalWatch> watches;
    for (const int number : os::NotIgnored({SIGINT, SIGTERM, SIGHUP})) {
      watches.emplace_back(loop, std::initializer_list<int>{number}, [&](int signal) {
        stopped_by = signal;
        loop.Stop();
      });
    }
    const TimePoint until = loop.Now() + at_most;
    bool told = false;
    loop::Task run = [&] {
      script.Run([&](absl::StatusOr<hosts::HostList> found) {
        list = std::move(found);
        if (!list.ok() || !list->entries.empty() || loop.Now() >= until) return loop.Stop();
        if (!std::exchange(told, true)) {
          std::fputs("dtrain: --discover has printed no host yet; waiting for one\n", stderr);
        }
        again.After(kBetweenRuns, [&] { run(); });
      });
    };
    run();
    loop.Run();
  }
  // The command is gone with all that it had started: we can go, too.
  if (stopped_by != 0) {
    std::signal(stopped_by, SIG_DFL);
    std::raise(stopped_by);
  }
  if (list.ok() && list->entries.empty()) {
    return absl::DeadlineExceededError(absl::StrCat("--discover: \"", Escape(command, 200),
                                                    "\" has printed no host within ",
                                                    at_most / std::chrono::seconds(1), " s"));
  }
  return list;
}

}  // namespace dtrain::discovery
