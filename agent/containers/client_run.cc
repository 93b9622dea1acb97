// SPDX-License-Identifier: Apache-2.0
#include "agent/containers/client_run.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/text.h"
#include "common/os/fd.h"

namespace dtrain::containers {
namespace {

constexpr size_t kKeptBytes = 4096;
constexpr size_t kToldLines = 2;

}  // namespace

absl::StatusOr<std::unique_ptr<ClientRun>> ClientRun::Start(loop::Loop& loop, const What& what,
                                                            Done done) {
  auto pipe = os::Pipe();
  if (!pipe.ok()) return pipe.status();
  if (absl::Status set = os::SetNonBlocking(pipe->first.get(), true); !set.ok()) return set;
  os::SpawnSpec spec;
  spec.argv = what.argv;
  spec.env = what.env;
  spec.working_directory = "/";
  spec.stdout_fd = pipe->second.get();
  spec.stderr_fd = pipe->second.get();
  spec.user = what.user;
  spec.new_session = what.user != nullptr;
  if (what.user == nullptr) spec.parent_death_signal = SIGKILL;
  std::unique_ptr<ClientRun> run;
  if (what.user == nullptr) {
    auto child = os::Spawn(spec);
    if (!child.ok()) return child.status();
    run.reset(new ClientRun(loop, *std::move(child), std::move(pipe->first), std::move(done)));
  } else {
    auto pending = os::SpawnAs(spec);
    if (!pending.ok()) return pending.status();
    run.reset(
        new ClientRun(loop, std::move(pending->child), std::move(pipe->first), std::move(done)));
    run->pending_ = *std::move(pending);
  }
  run->limit_.After(what.limit, [run = run.get()] {
    run->late_ = true;
    (void)os::SendSignal(run->child_.pidfd.get(), SIGKILL);
  });
  return run;
}

ClientRun::ClientRun(loop::Loop& loop, os::Child child, os::UniqueFd output, Done done)
    : loop_(loop),
      child_(std::move(child)),
      output_(std::move(output)),
      done_(std::move(done)),
      exit_watch_(std::make_unique<loop::FdWatch>(loop, child_.pidfd.get())),
      output_watch_(std::make_unique<loop::FdWatch>(loop, output_.get())),
      limit_(loop) {
  Watch();
  WatchOutput();
}

// One that was killed ends when the kernel lets it, and must be reaped then.
ClientRun::~ClientRun() {
  if (ended_) return;
  (void)os::SendSignal(child_.pidfd.get(), SIGKILL);
  struct Rest {
    Rest(loop::Loop& loop, os::UniqueFd fd) : pidfd(std::move(fd)), watch(loop, pidfd.get()) {}
    os::UniqueFd pidfd;
    loop::FdWatch watch;
  };
  exit_watch_.reset();  // a descriptor has one watch at a time
  auto rest = std::make_shared<Rest>(loop_, std::move(child_.pidfd));
  rest->watch.OnReadable([rest] { (void)os::TryReap(rest->pidfd.get()); });
}

void ClientRun::Watch() {
  exit_watch_->OnReadable([this] { Reap(); });
}

void ClientRun::WatchOutput() {
  output_watch_->OnReadable([this] {
    if (ReadOutput()) WatchOutput();
  });
}

// False at its end.
bool ClientRun::ReadOutput() {
  char buffer[4096];
  for (;;) {
    const ssize_t n = read(output_.get(), buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 && errno == EAGAIN;
    text_.append(buffer, static_cast<size_t>(n));
    if (text_.size() > 2 * kKeptBytes) text_.erase(0, text_.size() - kKeptBytes);
  }
}

bool ClientRun::OnChild(pid_t pid) {
  if (ended_ || child_.pid != pid) return false;
  Reap();
  return true;
}

void ClientRun::Reap() {
  if (ended_) return;
  const auto status = os::TryReap(child_.pidfd.get());
  if (status.ok() && !status->has_value()) return Watch();
  ended_ = true;
  limit_.Cancel();
  (void)ReadOutput();  // of what it has started, somebody may have the other end for long
  output_watch_.reset();
  if (pending_) {
    const auto report = pending_->Report();
    if (report && !report->ok()) absl::StrAppend(&text_, std::string(report->message()), "\n");
  }
  End end;
  end.status = status.ok() ? **status : os::ExitStatus{.code = 1};
  end.late = late_;
  end.output = std::move(text_);
  std::exchange(done_, nullptr)(std::move(end));
}

std::string Describe(const std::vector<std::string>& argv, const ClientRun::End& end) {
  std::string how = end.late ? "did not end in time and was killed"
                    : end.status.signal != 0
                        ? absl::StrCat("was killed by signal ", end.status.signal)
                        : absl::StrCat("exited with code ", end.status.code);
  std::vector<std::string> lines =
      absl::StrSplit(end.output, absl::ByAnyChar("\r\n"), absl::SkipWhitespace());
  // Podman's log says the same of each try, before its last word.
  std::erase_if(lines, [](const std::string& line) { return absl::StartsWith(line, "time="); });
  const size_t first = lines.size() > kToldLines ? lines.size() - kToldLines : 0;
  std::vector<std::string> told;
  for (size_t i = first; i < lines.size(); ++i) told.push_back(Escape(lines[i], 400));
  std::vector<std::string> words(argv.begin(), argv.end());
  words[0] = words[0].substr(words[0].rfind('/') + 1);
  return absl::StrCat("`", Escape(absl::StrJoin(words, " "), 300), "` ", how,
                      told.empty() ? "" : absl::StrCat(": ", absl::StrJoin(told, " | ")));
}

}  // namespace dtrain::containers
