// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "agent/shepherd/run_shepherd.h"
#include "common/base/clock.h"
#include "common/link/link_core.h"
#include "common/link/log_frame.h"
#include "common/link/party.h"
#include "common/link/socket_carrier.h"
#include "common/loop/frame_channel.h"
#include "common/loop/loop.h"
#include "common/os/cgroup.h"
#include "common/os/fd.h"
#include "common/os/pidfd.h"
#include "dtrain/v1/shepherd.pb.h"
#include "tests/support/paths.h"

namespace dtrain::shepherd {

inline constexpr auto kLimit = std::chrono::seconds(20);

// Plays the agent and the launcher to a real shepherd in a process of its own.
class ShepherdTest : public ::testing::Test {
 protected:
  struct Log {
    std::string bytes;  // unless they are only counted
    uint64_t size = 0;  // that came
    std::optional<uint64_t> end;
  };
  // One end of a socket on which output comes.
  struct LogReader {
    std::unique_ptr<link::SocketCarrier> carrier;
    uint64_t came = 0;  // frames
    uint64_t acked = 0;
    uint64_t said = 0;
    std::optional<v1::LogsEnd> end;
    bool closed = false;
  };
  using LogKey = std::pair<uint32_t, v1::StreamKind>;

  ShepherdTest() { MakeLauncher(); }
  void MakeLauncher() {
    link::LinkCore::Options options;
    options.epoch = link::RandomEpoch();
    options.out = link::kToShepherd;
    options.in = link::kToLauncher;
    launcher_.emplace(options);
  }
  ~ShepherdTest() override {
    channel_.reset();
    carrier_.reset();
    if (!socket_path_.empty()) (void)unlink(socket_path_.c_str());
    if (shepherd_) {
      (void)os::SendSignal(shepherd_.get(), SIGKILL);
      (void)os::WaitAndReap(shepherd_.get());
    }
    os::Cgroup left(CgroupPath());
    if (!CgroupPath().empty() && access(CgroupPath().c_str(), F_OK) == 0) {
      left.Kill();
      while (left.Populated()) poll(nullptr, 0, 5);
      (void)left.Remove();
    }
  }

  v1::JobPart Part(int workers, std::vector<std::string> argv) {
    v1::JobPart part;
    for (const v1::Contract contract : {v1::CONTRACT_TORCH, v1::CONTRACT_HOROVOD, v1::CONTRACT_MPI,
                                        v1::CONTRACT_JAX, v1::CONTRACT_DTRAIN}) {
      part.add_contracts(contract);
    }
    part.set_job_id(job_id_);
    part.set_node_count(1);
    part.set_world_size(static_cast<uint32_t>(workers));
    part.set_universe_size(static_cast<uint32_t>(workers));
    part.set_host("here");
    part.set_grace_ms(2000);
    part.set_spool_limit_bytes(4 << 20);
    v1::Program* program = part.add_programs();
    for (std::string& a : argv) program->add_argv(std::move(a));
    v1::EnvVar* path = part.add_env();
    path->set_name("PATH");
    path->set_value("/usr/local/bin:/usr/bin:/bin");
    for (int i = 0; i < workers; ++i) {
      v1::WorkerSpec* worker = part.add_workers();
      worker->set_rank(static_cast<uint32_t>(i));
      worker->set_local_rank(static_cast<uint32_t>(i));
      worker->set_cross_size(1);
    }
    return part;
  }
  v1::JobPart Shell(int workers, const std::string& script) {
    return Part(workers, {"/bin/sh", "-c", script});
  }

  // `prepare` runs in the shepherd's process before it begins.
  void Start(v1::JobPart part, std::function<void()> prepare = nullptr) {
    part_ = part;
    auto pair = os::SocketPair();
    ASSERT_TRUE(pair.ok());
    pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      dup2(pair->second.get(), 3);
      os::CloseRange(4, os::kEveryDescriptor);
      if (prepare) prepare();
      _exit(RunShepherd(3, ProgramPath("dtrain-agent"), limits_));
    }
    shepherd_pid_ = pid;
    shepherd_ = *os::OpenPidfd(pid);
    pair->second.Reset();
    Listen(std::move(pair->first));
    if (!socket_path_.empty()) SendKeepRunning();
    for (const auto& [port, socket] : held_) {
      v1::ShepherdRequest held;
      held.mutable_held_port()->set_port(port);
      EXPECT_TRUE(channel_->Send(held.SerializeAsString(), socket.get()).ok());
    }
    AttachLauncher();
    ReadLogs();
    v1::JobRequest request;
    *request.mutable_start() = std::move(part);
    Send(request);
  }
  // A launcher comes, or comes again, to the agent.
  void AttachLauncher() {
    auto pair = os::SocketPair();
    ASSERT_TRUE(pair.ok());
    carrier_.reset();
    launcher_->Close();
    ++asked_;
    v1::ShepherdRequest request;
    *request.mutable_attach()->mutable_launcher() = link::OwedBy(*launcher_);
    request.mutable_attach()->set_silence_ms(static_cast<uint32_t>(most_silence_.count()));
    request.mutable_attach()->set_generation(generation_);
    carrier_ = std::make_unique<link::SocketCarrier>(
        loop_, std::move(pair->first),
        link::CarrierHandlers{[this]() -> std::optional<link::Frame> {
                                if (channel_->queued_bytes() > 0) return std::nullopt;
                                auto frame = launcher_->Next(loop_.Now());
                                if (frame && !acknowledges_) frame->header.ack = 0;
                                return frame;
                              },
                              [this](const link::Frame& frame) { OnLauncherFrame(frame); },
                              [](const absl::Status&) {}});
    EXPECT_TRUE(channel_->Send(request.SerializeAsString(), pair->second.get()).ok());
  }
  // Another launcher takes the job over: it knows nothing.
  void Succeed() {
    ++generation_;
    carrier_.reset();
    link_due_.Cancel();
    MakeLauncher();
    started_.reset();
    exits_.clear();
    fences_.clear();
    failures_.clear();
    order_.clear();
    finished_said_ = finished_ = false;
    retold_ = 0;
    AttachLauncher();
  }
  bool UntilRetold() {
    return Until([this] { return retold_ == 1; });
  }
  void OnLauncherFrame(const link::Frame& frame) {
    if (launcher_->state() != link::LinkCore::State::kUp) channel_->ReadToEnd();  // attached
    if (hears_ && !hears_()) return;
    auto message = launcher_->OnFrame(loop_.Now(), frame);
    ASSERT_TRUE(message.ok()) << message.status();
    link_due_.At(launcher_->NextDeadline(), [this] { carrier_->Pump(); });
    if (!message->has_value()) return;
    v1::JobEvent event;
    ASSERT_TRUE(event.ParseFromString(std::string((*message)->view())));
    EXPECT_FALSE(finished_said_ && !event.has_retold())
        << "after Finished: " << event.ShortDebugString();
    order_.push_back(event.kind_case());
    OnJobEvent(event);
    OnEvent(event);
  }
  // The launcher's reader comes, or comes again, from where it was.
  void ReadLogs() {
    v1::ReadLogs ask;
    ask.set_reclaim(reclaims_);
    for (const auto& [key, log] : logs_) {
      v1::LogPosition& from = *ask.add_from();
      from.set_rank(key.first);
      from.set_stream(key.second);
      from.set_offset(log.size);
    }
    log_reader_ = ReadLogs(ask, [this](const v1::LogPosition& at, absl::string_view data) {
      Log& log = logs_[{at.rank(), at.stream()}];
      EXPECT_EQ(at.offset(), log.size);
      log.size += data.size();
      if (keeps_bytes_) log.bytes.append(data.data(), data.size());
      ++log_frames_;
      OnLog(at, data);
    });
  }
  // Frames are acknowledged as they come while `takes_logs_`.
  std::unique_ptr<LogReader> ReadLogs(
      const v1::ReadLogs& ask,
      std::function<void(const v1::LogPosition&, absl::string_view)> on_piece) {
    auto pair = os::SocketPair();
    EXPECT_TRUE(pair.ok());
    auto reader = std::make_unique<LogReader>();
    LogReader* const raw = reader.get();
    link::CarrierHandlers handlers;
    handlers.next = [raw]() -> std::optional<link::Frame> {
      if (raw->said == raw->acked) return std::nullopt;
      return link::LogAck(raw->said = raw->acked);
    };
    handlers.on_frame = [this, raw, on_piece](const link::Frame& frame) {
      EXPECT_FALSE(raw->end.has_value()) << "after the end";
      auto decoded = link::DecodeLogFrame(frame);
      ASSERT_TRUE(decoded.ok()) << decoded.status();
      ++raw->came;
      EXPECT_LE(raw->came - raw->acked, link::kLogWindow);
      if (decoded->head.has_end()) {
        raw->end = decoded->head.end();
        return CheckFinished();
      }
      on_piece(decoded->head.at(), decoded->data.view());
      if (takes_logs_) raw->acked = raw->came;
    };
    handlers.on_closed = [raw](const absl::Status&) { raw->closed = true; };
    raw->carrier =
        std::make_unique<link::SocketCarrier>(loop_, std::move(pair->first), std::move(handlers));
    v1::ShepherdRequest request;
    *request.mutable_read_logs() = ask;
    EXPECT_TRUE(channel_->Send(request.SerializeAsString(), pair->second.get()).ok());
    return reader;
  }
  // Both sides were told, and all output is here if it is taken.
  void CheckFinished() {
    const bool read = !takes_logs_ || (log_reader_ != nullptr && log_reader_->end);
    finished_ = ended_ && finished_said_ && read;
  }
  // All that has come.
  void TakeLogs() {
    log_reader_->acked = log_reader_->came;
    log_reader_->carrier->Pump();
  }
  // To be called before Start: the shepherd outlives us by `lease`.
  void Keep(std::chrono::milliseconds lease) {
    lease_ = lease;
    socket_path_ = absl::StrCat(::testing::TempDir(), "/", job_id_, ".sock");
  }
  void SendKeepRunning() {
    os::UniqueFd bound(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un name = SocketName();
    ASSERT_EQ(bind(bound.get(), reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
    v1::ShepherdRequest request;
    v1::Hello& hello = *request.mutable_keep_running()->mutable_hello();
    hello.set_job_id(job_id_);
    hello.set_lease_ms(static_cast<uint32_t>(lease_.count()));
    hello.set_generation(generation_);
    hello.set_away_ms(static_cast<uint32_t>(away_.count()));
    EXPECT_TRUE(channel_->Send(request.SerializeAsString(), bound.get()).ok());
  }
  // The agent dies.
  void Leave() {
    channel_.reset();
    carrier_.reset();
    launcher_->Close();
    asked_ = answered_ = 0;
    log_reader_.reset();
    ended_ = false;
  }
  // The next agent comes, and the launcher to it.
  bool Adopt() {
    os::UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un name = SocketName();
    if (connect(fd.get(), reinterpret_cast<sockaddr*>(&name), sizeof(name)) != 0) return false;
    account_.reset();
    Listen(std::move(fd));
    if (!Until([this] { return account_.has_value(); })) return false;
    AttachLauncher();
    ReadLogs();
    return true;
  }
  void Release() {
    v1::ShepherdRequest request;
    request.mutable_release();
    Send(request);
  }
  sockaddr_un SocketName() const {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    absl::SNPrintF(name.sun_path, sizeof(name.sun_path), "%s", socket_path_);
    return name;
  }
  void Listen(os::UniqueFd fd) {
    channel_ = std::make_unique<loop::FrameChannel>(
        loop_, std::move(fd),
        [this](absl::string_view frame, const os::UniqueFd& with) { OnFrame(frame, with); },
        [this](const absl::Status&) { closed_ = true; });
  }

  void Send(const v1::ShepherdRequest& request) {
    EXPECT_TRUE(channel_->Send(request.SerializeAsString()).ok());
  }
  void Send(const v1::JobRequest& request) {
    EXPECT_TRUE(launcher_->Send(link::SharedBytes(request.SerializeAsString())).ok());
    carrier_->Pump();
  }
  void Stop(uint32_t grace_ms) {
    v1::JobRequest request;
    request.mutable_stop()->set_grace_ms(grace_ms);
    Send(request);
  }
  void Stdin(uint32_t rank, const std::string& data, bool end) {
    v1::JobRequest request;
    request.mutable_stdin()->set_rank(rank);
    request.mutable_stdin()->set_data(data);
    request.mutable_stdin()->set_end(end);
    Send(request);
  }
  // Runs the loop until it holds. False when it does not within the limit.
  bool Until(const std::function<bool()>& holds, Duration limit = kLimit) {
    TimePoint end = Clock::now() + limit;
    while (!holds()) {
      if (loop_.context().run_one_until(end) == 0) return holds();
    }
    return true;
  }
  bool UntilFinished(Duration limit = kLimit) {
    return Until([this] { return finished_; }, limit) && ShepherdExited();
  }
  bool UntilStarted() {
    return Until([this] { return started_.has_value() || !failures_.empty(); }) &&
           started_.has_value();
  }
  bool ShepherdExited(Duration limit = kLimit) {
    if (!Gone(shepherd_.get(), limit)) return false;
    auto status = os::WaitAndReap(shepherd_.get());
    shepherd_.Reset();
    return status.ok() && status->code == 0 && status->signal == 0;
  }
  static bool Gone(int pidfd, Duration limit = kLimit) {
    pollfd p{pidfd, POLLIN, 0};
    auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(limit).count();
    int n;
    do {
      n = poll(&p, 1, static_cast<int>(ms));  // SIGCHLD may interrupt it: pidfd_stand_in.h
    } while (n < 0 && errno == EINTR);
    return n == 1;
  }
  // Of the workers, to watch them when the shepherd is gone.
  std::vector<os::UniqueFd> WorkerPidfds() {
    std::vector<os::UniqueFd> out;
    for (const v1::WorkerStarted& w : started_->workers()) {
      auto fd = os::OpenPidfd(static_cast<pid_t>(w.pid()));
      if (fd.ok()) out.push_back(*std::move(fd));
    }
    return out;
  }

  std::string Read(uint32_t rank, v1::StreamKind kind) { return logs_[{rank, kind}].bytes; }
  std::string Out(uint32_t rank = 0) { return Read(rank, v1::STREAM_KIND_STDOUT); }
  std::string Err(uint32_t rank = 0) { return Read(rank, v1::STREAM_KIND_STDERR); }

  std::string CgroupPath() const {
    auto parent = os::FindWritableCgroup();
    return parent.ok() ? absl::StrCat(*parent, "/", os::JobCgroupName(job_id_, 0, 0)) : "";
  }

  virtual void OnEvent(const v1::JobEvent&) {}
  virtual void OnLog(const v1::LogPosition&, absl::string_view) {}

  void OnFrame(absl::string_view frame, const os::UniqueFd& fd) {
    EXPECT_FALSE(fd);
    v1::ShepherdEvent event;
    ASSERT_TRUE(event.ParseFromArray(frame.data(), static_cast<int>(frame.size())));
    EXPECT_FALSE(ended_ && !event.has_attached()) << "after the end: " << event.ShortDebugString();
    switch (event.kind_case()) {
      case v1::ShepherdEvent::kAccount:
        account_ = event.account();
        break;
      case v1::ShepherdEvent::kAttached:
        if (++answered_ < asked_) break;  // of a connection that was replaced
        ASSERT_TRUE(launcher_->Open(loop_.Now(), link::FromProto(event.attached())).ok());
        carrier_->Pump();
        break;
      case v1::ShepherdEvent::kEnded:
        ended_ = true;
        CheckFinished();
        for (const v1::LogEnd& end : event.ended().logs()) {
          logs_[{end.rank(), end.stream()}].end = end.size();
        }
        break;
      case v1::ShepherdEvent::kReport:
        ++reports_;
        report_ = event.report();
        for (const v1::RankOnNode& rank : report_.job().ranks()) {
          for (auto [stream, bytes] : {std::pair(v1::STREAM_KIND_STDOUT, rank.stdout_bytes()),
                                       std::pair(v1::STREAM_KIND_STDERR, rank.stderr_bytes())}) {
            uint64_t& size = sizes_[{rank.rank(), stream}];
            EXPECT_GE(bytes, size);
            size = bytes;
          }
        }
        break;
      case v1::ShepherdEvent::kBroken:
        broken_ = event.broken();
        break;
      case v1::ShepherdEvent::KIND_NOT_SET:
        ++answers_;
        break;
    }
  }

  void OnJobEvent(const v1::JobEvent& event) {
    switch (event.kind_case()) {
      case v1::JobEvent::kPreparing:
        preparing_.push_back(event.preparing().what());
        break;
      case v1::JobEvent::kStarted:
        started_ = event.started();
        break;
      case v1::JobEvent::kHeartbeat:
        ++beats_;
        break;
      case v1::JobEvent::kExit:
        exits_[event.exit().rank()] = event.exit();
        break;
      case v1::JobEvent::kStdinTaken:
        stdin_taken_.push_back(event.stdin_taken());
        break;
      case v1::JobEvent::kFenceEnter:
        fences_.push_back(event.fence_enter());
        break;
      case v1::JobEvent::kPmix:
        pmix_.push_back(event.pmix());
        break;
      case v1::JobEvent::kElastic:
        elastic_.push_back(event.elastic());
        break;
      case v1::JobEvent::kCheckpoint:
        checkpoints_.push_back(event.checkpoint());
        break;
      case v1::JobEvent::kSaving:
        ++savings_;
        break;
      case v1::JobEvent::kFinished:
        finished_said_ = true;
        CheckFinished();
        break;
      case v1::JobEvent::kFailure:
        failures_.push_back(event.failure());
        break;
      case v1::JobEvent::kRetold:
        ++retold_;
        break;
      case v1::JobEvent::kWarning:
        if (absl::StrContains(event.warning().message(), "workers get no cgroup")) {
          has_no_cgroups_ = true;
          break;
        }
        warnings_.push_back(event.warning().message());
        break;
      case v1::JobEvent::kProgress:
        for (const auto& progress : event.progress().ranks()) progress_[progress.rank()] = progress;
        break;
      case v1::JobEvent::kSpans: {
        v1::Spans spans;
        ASSERT_TRUE(spans.ParseFromString(event.spans()));
        const std::string names = spans_[spans.rank()].names() + spans.names();
        spans_[spans.rank()].MergeFrom(spans);
        spans_[spans.rank()].set_names(names);
        break;
      }
      default:
        ADD_FAILURE() << "not a shepherd's to say: " << event.ShortDebugString();
    }
  }

  loop::Loop loop_;
  std::unique_ptr<loop::FrameChannel> channel_;
  // The launcher's end.
  std::optional<link::LinkCore> launcher_;
  std::unique_ptr<link::SocketCarrier> carrier_;
  loop::Timer link_due_{loop_};
  std::function<bool()> hears_;  // null: always
  bool acknowledges_ = true;
  uint64_t generation_ = 0;
  int retold_ = 0;
  std::vector<v1::JobEvent::KindCase> order_;  // of what came
  bool reclaims_ = true;
  int asked_ = 0;  // to attach it, and answered
  int answered_ = 0;
  const std::string job_id_ = "test-" + os::RandomHex(6);
  v1::JobPart part_;
  ShepherdLimits limits_;  // to be set before Start
  os::UniqueFd shepherd_;
  pid_t shepherd_pid_ = 0;
  bool closed_ = false;
  bool ended_ = false;          // so says the shepherd to its agent
  bool finished_said_ = false;  // and to its launcher
  bool finished_ = false;       // CheckFinished
  std::string broken_;
  int answers_ = 0;  // to EndJob
  int beats_ = 0;    // that answer ours
  std::chrono::milliseconds most_silence_{0};
  v1::Report report_;
  std::optional<v1::Started> started_;
  std::map<uint32_t, v1::WorkerExit> exits_;
  std::map<LogKey, Log> logs_;
  std::map<LogKey, uint64_t> sizes_;  // as reported
  std::unique_ptr<LogReader> log_reader_;
  bool takes_logs_ = true;
  bool keeps_bytes_ = true;
  int log_frames_ = 0;
  std::map<uint32_t, v1::RankProgress> progress_;
  std::map<uint32_t, v1::Spans> spans_;
  int reports_ = 0;
  std::vector<v1::NodeFailure> failures_;
  std::vector<std::string> warnings_;
  bool has_no_cgroups_ =
      false;  // it warns of that: an ordinary user may make none on some machines
  int savings_ = 0;
  std::vector<std::string> preparing_;
  std::vector<v1::PmixUp> pmix_;
  std::vector<v1::ElasticUp> elastic_;
  std::vector<v1::Checkpoint> checkpoints_;
  std::map<uint32_t, os::UniqueFd> held_;  // by port: they go before the start
  std::vector<v1::StdinTaken> stdin_taken_;
  std::vector<v1::FenceEnter> fences_;
  // Of shepherds that outlive their agent.
  std::chrono::milliseconds lease_{}, away_{};
  std::string socket_path_;  // empty: it does not
  std::optional<v1::Account> account_;
};

}  // namespace dtrain::shepherd
