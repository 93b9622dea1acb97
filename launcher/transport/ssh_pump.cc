// SPDX-License-Identifier: Apache-2.0
#include "launcher/transport/ssh_pump.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"
#include "common/os/fd.h"
#include "launcher/transport/ssh_dial.h"

namespace dtrain::transport {
namespace {

constexpr char kRemoteCommand[] = "exec /bin/sh";
constexpr size_t kPiece = 256 << 10;
// What may wait for our own side to read. More stays with libssh, whose window then closes.
constexpr size_t kMaxReceived = 1 << 20;
// libssh reads 4 KiB at a time: so many in a row before the other direction has its turn.
constexpr int kTurns = 256;
// For what was written before the connection was given up to reach the other side.
constexpr Duration kFarewell = std::chrono::milliseconds(500);
// Between the end of the output and that of the channel: for the exit status to arrive.
constexpr std::chrono::milliseconds kSshLastWords(1000);

std::vector<std::string> Machines(const AgentImages& images) {
  std::vector<std::string> machines;
  for (const AgentImage& image : images) machines.push_back(image.machine);
  return machines;
}

}  // namespace

SshPump::SshPump(std::shared_ptr<SshLink> link, SshSession& session, const AgentImages& images,
                 PushOrder& order, std::string bridge_flag)
    : link_(std::move(link)),
      session_(session),
      images_(images),
      order_(order),
      bridge_flag_(std::move(bridge_flag)),
      bootstrap_(Machines(images), /*login_shell=*/true) {}

SshPump::~SshPump() {
  if (event_ != nullptr) ssh_event_free(event_);
  if (channel_ != nullptr) {
    ssh_remove_channel_callbacks(channel_, &callbacks_);
    ssh_channel_free(channel_);
  }
}

int SshPump::OnData(ssh_session, ssh_channel, void* data, uint32_t len, int is_stderr, void* self) {
  auto* pump = static_cast<SshPump*>(self);
  absl::string_view bytes(static_cast<const char*>(data), len);
  if (is_stderr != 0) {
    pump->stderr_.Add(bytes);
    return static_cast<int>(len);
  }
  size_t room = kMaxReceived - std::min(kMaxReceived, pump->received_.size());
  pump->left_behind_ = bytes.size() > room;
  bytes = bytes.substr(0, room);
  pump->received_.append(bytes.data(), bytes.size());
  return static_cast<int>(bytes.size());
}

void SshPump::OnExitStatus(ssh_session, ssh_channel, int status, void* self) {
  auto* pump = static_cast<SshPump*>(self);
  pump->exit_ = absl::StrCat("ended with status ", status);
  pump->failed_ = status != 0;
  pump->ending_ = true;
}

void SshPump::OnExitSignal(ssh_session, ssh_channel, const char* signal, int, const char*,
                           const char*, void* self) {
  auto* pump = static_cast<SshPump*>(self);
  pump->exit_ = absl::StrCat("was killed by SIG", Escape(signal));
  pump->failed_ = true;
  pump->ending_ = true;
}

void SshPump::OnEof(ssh_session, ssh_channel, void* self) {
  static_cast<SshPump*>(self)->ending_ = true;
}

void SshPump::OnClose(ssh_session, ssh_channel, void* self) {
  static_cast<SshPump*>(self)->channel_ended_ = true;
}

absl::Status SshPump::OpenChannel() {
  ssh_session session = session_.get();
  channel_ = ssh_channel_new(session);
  if (channel_ == nullptr || ssh_channel_open_session(channel_) != SSH_OK) {
    return absl::UnavailableError(absl::StrCat("open an ssh channel: ", session_.Error()));
  }
  callbacks_.size = sizeof(callbacks_);
  callbacks_.userdata = this;
  callbacks_.channel_data_function = OnData;
  callbacks_.channel_exit_status_function = OnExitStatus;
  callbacks_.channel_exit_signal_function = OnExitSignal;
  callbacks_.channel_close_function = OnClose;
  callbacks_.channel_eof_function = OnEof;
  ssh_set_channel_callbacks(channel_, &callbacks_);
  ssh_set_counters(session, &counter_, nullptr);
  if (ssh_channel_request_exec(channel_, kRemoteCommand) != SSH_OK) {
    return absl::UnavailableError(absl::StrCat("run a shell there: ", session_.Error()));
  }
  event_ = ssh_event_new();
  if (event_ == nullptr || ssh_event_add_session(event_, session) != SSH_OK) {
    return absl::ResourceExhaustedError("no memory for an ssh session");
  }
  ssh_set_blocking(session, 0);
  outgoing_ = BootstrapScript(images_, bridge_flag_);
  return absl::OkStatus();
}

void SshPump::Run() {
  absl::Status status = OpenChannel();
  if (status.ok()) status = Carry();
  ticket_.reset();
  // Before the other end is told by an end of file, so that whoever sees it finds the reason.
  if (ready_) {
    SshLink::Post(link_, [told = Unshared(status)](SshEvents& events) mutable {
      events.OnClosed(std::move(told));
    });
  } else {
    SshLink::Post(link_, [told = Unshared(status)](SshEvents& events) mutable {
      events.OnFailed(std::move(told));
    });
  }
  local_.Reset();
  if (channel_ != nullptr) Farewell();
}

absl::Status SshPump::Carry() {
  for (;;) {
    DriveSession();
    if (!ready_) {
      absl::Status status = OnOutput();
      if (!status.ok()) return status;
    }
    if (ready_) {
      WriteLocal();
      ReadLocal();
      if (local_ended_ && outgoing_.empty()) return absl::OkStatus();
    }
    FillOutgoing();
    SendOutgoing();
    if (ChannelOver() && (!ready_ || (received_.empty() && !left_behind_) || local_ended_)) {
      if (ready_) return Reason();
      absl::Status why = bootstrap_.OnEnd(HowItEnded(), stderr_.text());
      // Its machine may be rebooting.
      return exit_.empty() && !alive_ ? PassingError(std::move(why), "connection broken") : why;
    }
    if (!Wait()) return absl::CancelledError("given up");
  }
}

void SshPump::DriveSession() {
  for (int turn = 0; turn < kTurns && alive_; ++turn) {
    uint64_t before = counter_.in_bytes;
    if (ssh_event_dopoll(event_, 0) == SSH_ERROR || !ssh_is_connected(session_.get())) {
      alive_ = false;
    }
    if (counter_.in_bytes == before) break;
    if (received_.size() >= kPiece) break;
  }
}

absl::Status SshPump::OnOutput() {
  if (received_.empty()) return absl::OkStatus();
  std::string bytes = std::exchange(received_, {});
  const Bootstrap::Want want = bootstrap_.OnOutput(bytes);
  if (bootstrap_.begun() && !std::exchange(begun_told_, true)) {
    SshLink::Post(link_, [](SshEvents& events) { events.OnPhase(Phase::kStartingAgent); });
  }
  switch (want) {
    case Bootstrap::Want::kMore:
      return absl::OkStatus();
    case Bootstrap::Want::kPush:
      OnNeed();
      return absl::OkStatus();
    case Bootstrap::Want::kFailed:
      return bootstrap_.error();
    case Bootstrap::Want::kReady:
      return HandOver();
  }
  return absl::OkStatus();
}

void SshPump::OnNeed() {
  if (ticket_) return StartPush();  // it has looked again
  ticket_ = order_.Ask(bootstrap_.home(), images_[bootstrap_.wanted()].sha256);
  SshLink::Post(link_, [](SshEvents& events) { events.OnPhase(Phase::kPushingAgent); });
  if (ticket_->wait_fd() < 0) return StartPush();
  wait_until_ = Clock::now() + order_.longest_wait();
}

void SshPump::StartPush() {
  const AgentImage& image = images_[bootstrap_.wanted()];
  push_.emplace(image, bootstrap_.has_gzip() && image.IsWorthPacking());
}

absl::Status SshPump::HandOver() {
  if (ticket_) ticket_->SetArrived();
  ticket_.reset();
  AllowSilence(link_->socket());
  auto pair = os::SocketPair();
  if (!pair.ok()) return pair.status();
  absl::Status status = os::SetNonBlocking(pair->first.get(), true);
  status.Update(os::SetNonBlocking(pair->second.get(), true));
  if (!status.ok()) return status;
  received_ = bootstrap_.TakeRest();
  local_ = std::move(pair->first);
  ready_ = true;
  SshLink::Post(link_, [stream = std::move(pair->second)](SshEvents& events) mutable {
    events.OnReady(std::move(stream));
  });
  return absl::OkStatus();
}

void SshPump::FillOutgoing() {
  if (!outgoing_.empty() || !push_) return;
  outgoing_ = push_->Next(kPiece);
  if (!outgoing_.empty()) return;
  if (!push_->complete()) ssh_channel_send_eof(channel_);
  push_.reset();
}

void SshPump::SendOutgoing() {
  while (outgoing_begin_ < outgoing_.size() && !ChannelOver()) {
    uint32_t window = ssh_channel_window_size(channel_);
    size_t piece = std::min<size_t>(window, outgoing_.size() - outgoing_begin_);
    if (piece == 0) return;
    int n = ssh_channel_write(channel_, outgoing_.data() + outgoing_begin_,
                              static_cast<uint32_t>(piece));
    if (n < 0) alive_ = false;
    if (n <= 0) return;
    outgoing_begin_ += static_cast<size_t>(n);
  }
  outgoing_.clear();
  outgoing_begin_ = 0;
}

void SshPump::WriteLocal() {
  size_t done = 0;
  while (done < received_.size() && !local_ended_) {
    ssize_t n = send(local_.get(), received_.data() + done, received_.size() - done, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno != EAGAIN) local_ended_ = true;
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  received_.erase(0, done);
  if (local_ended_) received_.clear();
  if (local_ended_ || !left_behind_ || received_.size() >= kMaxReceived) return;
  size_t old = received_.size();
  received_.resize(kMaxReceived);
  auto room = static_cast<uint32_t>(kMaxReceived - old);
  int n = ssh_channel_read_timeout(channel_, received_.data() + old, room, 0, 0);
  received_.resize(old + static_cast<size_t>(std::max(n, 0)));
  left_behind_ = n == static_cast<int>(room);
}

void SshPump::ReadLocal() {
  if (!outgoing_.empty() || local_ended_) return;
  char buffer[64 << 10];
  ssize_t n = recv(local_.get(), buffer, sizeof(buffer), 0);
  if (n > 0) outgoing_.assign(buffer, static_cast<size_t>(n));
  if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) local_ended_ = true;
}

bool SshPump::Wait() {
  int flags = ssh_get_poll_flags(session_.get());
  short ssh_events = POLLIN;
  if ((flags & SSH_WRITE_PENDING) != 0) ssh_events |= POLLOUT;
  short local_events = 0;
  if (outgoing_.empty()) local_events |= POLLIN;
  if (!received_.empty()) local_events |= POLLOUT;
  Proxy* proxy = session_.proxy();
  const bool waiting = wait_until_ != kNever;
  pollfd p[5] = {{alive_ ? session_.socket_fd() : -1, ssh_events, 0},
                 // Not when nothing is asked: a closed end would be told over and over.
                 {local_events == 0 || local_ended_ ? -1 : local_.get(), local_events, 0},
                 // A connection that is ready and given up ends by its local end.
                 {ready_ ? -1 : link_->cancel_fd(), POLLIN, 0},
                 {proxy != nullptr ? proxy->error_fd() : -1, POLLIN, 0},
                 {waiting ? ticket_->wait_fd() : -1, POLLIN, 0}};
  bool last_words = ending_ && !ChannelOver();
  int timeout = -1;
  if (last_words) {
    timeout = static_cast<int>(kSshLastWords.count());
  } else if (waiting) {
    const Duration left = std::max(wait_until_ - Clock::now(), Duration());
    timeout = static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count());
  }
  int n = poll(p, 5, timeout);
  if (n < 0 && errno != EINTR) return false;
  // Something that was left running there may hold the channel open for ever.
  if (n == 0 && last_words) channel_ended_ = true;
  if (p[3].revents != 0) proxy->ReadError();
  if (p[4].revents != 0) {
    wait_until_ = kNever;
    outgoing_ += bootstrap_.LookAgain();
  } else if (const TimePoint now = Clock::now(); waiting && now >= wait_until_) {
    const bool is_our_turn = ticket_->TakeTurn(now);
    wait_until_ = is_our_turn ? kNever : now + order_.next_wait();
    if (is_our_turn) StartPush();
  }
  return p[2].revents == 0;
}

void SshPump::Farewell() {
  TimePoint deadline = Clock::now() + kFarewell;
  if (alive_ && !channel_ended_) ssh_channel_send_eof(channel_);
  while (!ChannelOver()) {
    auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return;
    int flags = ssh_get_poll_flags(session_.get());
    bool writing = (flags & SSH_WRITE_PENDING) != 0;
    pollfd p{session_.socket_fd(), static_cast<short>(POLLIN | (writing ? POLLOUT : 0)), 0};
    if (poll(&p, 1, static_cast<int>(left)) < 0 && errno != EINTR) return;
    received_.clear();
    DriveSession();
  }
}

std::string SshPump::HowItEnded() const {
  if (!exit_.empty()) return absl::StrCat("the shell there ", exit_);
  if (!alive_) return absl::StrCat("the ssh connection broke (", session_.Loss(), ")");
  return "the shell there closed its output";
}

absl::Status SshPump::Reason() const {
  if (exit_.empty() && !alive_) {
    return absl::UnavailableError(absl::StrCat("the ssh connection broke: ", session_.Loss()));
  }
  if (!failed_) return absl::OkStatus();
  std::string last = LastLines(stderr_.text());
  return absl::UnavailableError(absl::StrCat("the agent ", exit_, last.empty() ? "" : ": ", last));
}

}  // namespace dtrain::transport
