// SPDX-License-Identifier: Apache-2.0
#include "launcher/transport/child_connection.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/exit_code.h"
#include "common/base/posix_error.h"

namespace dtrain::transport {
namespace {

constexpr size_t kReadSize = 64 << 10;
constexpr size_t kPushSize = 256 << 10;
// After the stream ended: for the exit status and the last words on stderr to arrive.
constexpr Duration kLastWords = std::chrono::seconds(1);

std::string SignalText(int signal) {
  const absl::string_view name = SignalName(signal);
  return name.empty() ? absl::StrCat("signal ", signal) : std::string(name);
}

}  // namespace

ChildConnection::ChildConnection(loop::Loop& loop, ChildReaper& reaper, ChildSpec spec,
                                 Callbacks callbacks)
    : loop_(loop),
      reaper_(reaper),
      spec_(std::move(spec)),
      callbacks_(std::move(callbacks)),
      end_timer_(loop),
      turn_timer_(loop) {
  loop_.Post([this, alive = alive_] {
    if (*alive) Start();
  });
}

ChildConnection::~ChildConnection() {
  *alive_ = false;
  stream_watch_.reset();
  exit_watch_.reset();
  // A duplicate of it is gRPC's, so closing alone would end nothing.
  if (stream_) shutdown(stream_.get(), SHUT_RDWR);
  stream_.Reset();
  if (child_.pidfd && !exit_) reaper_.Adopt(std::move(child_), std::move(error_), spec_.end);
}

bool ChildConnection::SetPhase(Phase phase) {
  std::shared_ptr<bool> alive = alive_;
  if (callbacks_.on_phase) callbacks_.on_phase(phase);
  return *alive;
}

void ChildConnection::Start() {
  auto child = StartChild(spec_.argv, /*stdout_apart=*/spec_.agent == nullptr);
  if (!child.ok()) return Fail(child.status());
  child_ = std::move(child->process);
  stream_ = std::move(child->stream);
  error_ = std::make_unique<TailReader>(loop_, std::move(child->error), [this, alive = alive_] {
    if (*alive) OnEnd();
  });
  bootstrap_.emplace(std::vector<std::string>{""});
  stream_watch_ = std::make_unique<loop::FdWatch>(loop_, stream_.get());
  exit_watch_ = std::make_unique<loop::FdWatch>(loop_, child_.pidfd.get());
  exit_watch_->OnReadable([this] { OnExit(); });
  if (!SetPhase(spec_.agent == nullptr ? Phase::kStartingAgent : Phase::kConnecting)) return;
  if (spec_.agent == nullptr) {
    stream_watch_->OnReadable([this] { OnReadable(); });
    return;
  }
  spec_.agent->WhenLoaded([this, alive = alive_](const AgentBinary::Result& images) {
    if (*alive) OnImages(images);
  });
}

void ChildConnection::OnImages(const AgentBinary::Result& images) {
  if (!images.ok()) return Fail(images.status());
  images_ = &*images;
  std::vector<std::string> machines;
  for (const AgentImage& image : *images_) machines.push_back(image.machine);
  bootstrap_.emplace(std::move(machines), spec_.login_shell);
  unwritten_ = BootstrapScript(*images_, spec_.bridge_flag);
  stream_watch_->OnReadable([this] { OnReadable(); });
  OnWritable();
}

void ChildConnection::OnReadable() {
  // Looked at before it is taken: what follows the handshake line stays in the socket for gRPC.
  char buffer[kReadSize];
  ssize_t n = recv(stream_.get(), buffer, sizeof(buffer), MSG_PEEK);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
    stream_watch_->OnReadable([this] { OnReadable(); });
    return;
  }
  if (n <= 0) return OnStreamEnd();
  if (OnBytes(absl::string_view(buffer, static_cast<size_t>(n)))) {
    stream_watch_->OnReadable([this] { OnReadable(); });
  }
}

// False: no more is to be read, and this may be gone.
bool ChildConnection::OnBytes(absl::string_view bytes) {
  Bootstrap::Want want = bootstrap_->OnOutput(bytes);
  size_t taken = bytes.size();
  if (want == Bootstrap::Want::kReady) taken -= bootstrap_->TakeRest().size();
  std::string sink(taken, '\0');
  ssize_t n = recv(stream_.get(), sink.data(), taken, 0);
  DTRAIN_CHECK(n == static_cast<ssize_t>(taken));
  if (bootstrap_->begun() && !std::exchange(begun_told_, true) &&
      !SetPhase(Phase::kStartingAgent)) {
    return false;
  }
  switch (want) {
    case Bootstrap::Want::kMore:
      return true;
    case Bootstrap::Want::kPush:
      return OnNeed();
    case Bootstrap::Want::kReady:
      Ready();
      return false;
    case Bootstrap::Want::kFailed:
      Fail(bootstrap_->error());
      return false;
  }
  return false;
}

bool ChildConnection::OnNeed() {
  if (images_ == nullptr) {
    Fail(absl::InternalError("the agent on this machine asked to be sent"));
    return false;
  }
  if (ticket_) {  // it has looked again
    StartPush();
    return true;
  }
  if (!SetPhase(Phase::kPushingAgent)) return false;
  const AgentImage& image = (*images_)[bootstrap_->wanted()];
  ticket_ = spec_.agent->order().Ask(bootstrap_->home(), image.sha256);
  if (ticket_->wait_fd() < 0) {
    StartPush();
    return true;
  }
  turn_watch_ = std::make_unique<loop::FdWatch>(loop_, ticket_->wait_fd());
  turn_watch_->OnReadable([this] {
    StopWaiting();
    unwritten_ += bootstrap_->LookAgain();
    OnWritable();
  });
  turn_timer_.After(spec_.agent->order().longest_wait(), [this] { OnWaitedLong(); });
  return true;
}

void ChildConnection::OnWaitedLong() {
  if (!ticket_->TakeTurn(loop_.Now())) {
    turn_timer_.After(spec_.agent->order().next_wait(), [this] { OnWaitedLong(); });
    return;
  }
  StopWaiting();
  StartPush();
}

void ChildConnection::StopWaiting() {
  turn_watch_.reset();
  turn_timer_.Cancel();
}

void ChildConnection::StartPush() {
  const AgentImage& image = (*images_)[bootstrap_->wanted()];
  const auto start = [this, &image](bool packed) {
    push_.emplace(image, packed);
    OnWritable();
  };
  if (!bootstrap_->has_gzip() || !image.IsWorthPacking()) return start(false);
  spec_.agent->WhenPacked(image, [start, this, alive = alive_] {
    if (*alive && stream_watch_ != nullptr) start(true);
  });
}

// Writes the script, or the agent after it, one piece a turn of the loop: a reader as fast as we
// are would otherwise keep the other nodes waiting until the whole agent is there. A broken pipe is
// no failure yet: the other side may have said why, which is still to be read.
void ChildConnection::OnWritable() {
  if (unwritten_.empty() && push_) Push();
  while (!unwritten_.empty()) {
    ssize_t n = send(stream_.get(), unwritten_.data(), unwritten_.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {
      stream_watch_->OnWritable([this] { OnWritable(); });
      return;
    }
    if (n < 0) {
      push_.reset();
      unwritten_.clear();
      return;
    }
    unwritten_.erase(0, static_cast<size_t>(n));
  }
  if (push_) stream_watch_->OnWritable([this] { OnWritable(); });
}

void ChildConnection::Push() {
  unwritten_ = push_->Next(kPushSize);
  if (!unwritten_.empty()) return;
  if (!push_->complete()) shutdown(stream_.get(), SHUT_WR);
  push_.reset();
}

void ChildConnection::OnStreamEnd() {
  stream_ended_ = true;
  stream_watch_.reset();
  StopWaiting();  // nothing can be written any more
  OnEnd();
}

void ChildConnection::OnExit() {
  // What the child left in its group goes with it; its number is the group's until it is reaped.
  if (spec_.end.whole_group) kill(-child_.pid, SIGTERM);
  auto status = os::TryReap(child_.pidfd.get());
  exit_watch_.reset();
  child_.pidfd.Reset();
  exit_ = status.ok() && status->has_value() ? **status : os::ExitStatus{};
  OnEnd();
}

// Called by each of the three ends: of the stream, of the child, of its stderr.
void ChildConnection::OnEnd() {
  if (!bootstrap_) return;
  auto fail = [this] { Fail(bootstrap_->OnEnd(HowItEnded(), error_->text())); };
  if (stream_ended_ && exit_ && error_->ended()) return fail();
  if (ending_ || (!stream_ended_ && !exit_)) return;
  ending_ = true;
  end_timer_.After(kLastWords, fail);
}

void ChildConnection::Ready() {
  int copy = fcntl(stream_.get(), F_DUPFD_CLOEXEC, 3);
  if (copy < 0) return Fail(PosixError(errno, "duplicate a descriptor"));
  if (ticket_) ticket_->SetArrived();
  EndHandshake();
  os::UniqueFd stream(std::exchange(stream_, os::UniqueFd(copy)).Release());
  auto on_ready = std::move(callbacks_.on_ready);
  callbacks_ = {};
  on_ready(std::move(stream));
}

void ChildConnection::EndHandshake() {
  stream_watch_.reset();
  end_timer_.Cancel();
  StopWaiting();
  ticket_.reset();
  bootstrap_.reset();
}

void ChildConnection::Fail(absl::Status status) {
  EndHandshake();
  stream_.Reset();
  auto on_failed = std::move(callbacks_.on_failed);
  callbacks_ = {};
  on_failed(std::move(status));
}

std::string ChildConnection::HowItEnded() const {
  if (!exit_) return absl::StrCat("`", spec_.shown, "` closed its output");
  if (exit_->signal != 0) {
    return absl::StrCat("`", spec_.shown, "` was killed by ", SignalText(exit_->signal));
  }
  return absl::StrCat("`", spec_.shown, "` exited with status ", exit_->code);
}

absl::Status ChildConnection::CloseReason() const {
  if (!exit_ || (exit_->signal == 0 && exit_->code == 0)) return absl::OkStatus();
  std::string last = LastLines(error_->text());
  return absl::UnavailableError(absl::StrCat(HowItEnded(), last.empty() ? "" : ": ", last));
}

}  // namespace dtrain::transport
