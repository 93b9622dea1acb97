// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/pmix_gate.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "agent/shepherd/preflight.h"
#include "common/base/posix_error.h"
#include "common/log/log.h"
#include "common/os/fd.h"
#include "common/os/pidfd.h"

namespace dtrain::shepherd {
namespace {

// For the server to let its library go: 5 ms.
constexpr Duration kEndPatience = std::chrono::seconds(2);
// What one that nobody uses may be started again after it has ended.
constexpr int kMostStarts = 3;
// What the ranks of a node may put for one fence: far above any MPI's need.
constexpr size_t kMostData = 16 << 20;

bool HelpsToFindLibraries(absl::string_view entry) {
  for (const char* name : {"LD_LIBRARY_PATH=", "PATH=", "PMIX_PREFIX=", "PMIX_INSTALL_PREFIX="}) {
    if (absl::StartsWith(entry, name)) return true;
  }
  return false;
}

}  // namespace

std::string PmixName(const v1::JobPart& part) {
  return absl::StrCat(part.job_id(), "-", part.attempt());
}

absl::StatusOr<std::unique_ptr<PmixGate>> PmixGate::Open(loop::Loop& loop, std::string program,
                                                         const v1::JobPart& part, Hooks hooks) {
  os::UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (!listener || bind(listener.get(), generic, size) != 0 ||
      listen(listener.get(), SOMAXCONN) != 0 || getsockname(listener.get(), generic, &size) != 0) {
    return PosixError(errno, "listen on a port of 127.0.0.1");
  }
  return std::unique_ptr<PmixGate>(new PmixGate(loop, std::move(program), part, std::move(hooks),
                                                std::move(listener), ntohs(address.sin_port)));
}

PmixGate::PmixGate(loop::Loop& loop, std::string program, const v1::JobPart& part, Hooks hooks,
                   os::UniqueFd listener, uint16_t port)
    : loop_(loop),
      program_(std::move(program)),
      part_(part),
      hooks_(std::move(hooks)),
      listener_(std::move(listener)),
      port_(port),
      watch_(loop, listener_.get()),
      patience_(loop) {}

PmixGate::~PmixGate() = default;

void PmixGate::Serve(Environment env, std::vector<std::string> folders) {
  env_ = std::move(env);
  folders_ = std::move(folders);
  AwaitClient();
}

// It may be anybody: the server looks.
void PmixGate::AwaitClient() {
  watch_.OnReadable([this] {
    if (failed_ || done_) return;
    ++starts_;
    if (absl::Status started = Start(); !started.ok()) {
      Fail(absl::StrCat("cannot start its PMIx server: ", std::string(started.message())),
           /*ended=*/false);
    }
  });
}

absl::Status PmixGate::Start() {
  if (folder_.empty()) {
    for (const std::string& folder : folders_) {
      std::string name = absl::StrCat(folder, "/dtrain-pmix-XXXXXX");
      if (mkdtemp(name.data()) == nullptr) continue;
      folder_ = std::move(name);
      break;
    }
  }
  if (folder_.empty()) return PosixError(errno, "make a folder for it");
  auto sockets = os::SocketPair();
  if (!sockets.ok()) return sockets.status();
  os::SpawnSpec spec;
  spec.argv = {program_, "pmix"};
  for (std::string& entry : env_()) {
    if (HelpsToFindLibraries(entry)) spec.env.push_back(std::move(entry));
  }
  spec.working_directory = "/";
  spec.stderr_fd = STDERR_FILENO;
  spec.extra_fds = {{sockets->second.get(), kPmixChannel}, {listener_.get(), kPmixListener}};
  spec.parent_death_signal = SIGKILL;
  auto child = os::Spawn(spec);
  if (!child.ok()) return child.status();
  child_ = *std::move(child);
  channel_ = std::make_unique<loop::FrameChannel>(
      loop_, std::move(sockets->first),
      [this](absl::string_view frame, os::UniqueFd) { OnFrame(frame); }, [](absl::Status) {});
  v1::PmixRequest request;
  v1::PmixStart& start = *request.mutable_start();
  start.set_name(PmixName(part_));
  start.set_node_rank(part_.node_rank());
  start.set_host(part_.host());
  start.set_directory(folder_);
  start.set_crowded(IsCrowded(part_));
  return channel_->Send(request.SerializeAsString());
}

void PmixGate::OnFrame(absl::string_view frame) {
  v1::PmixEvent event;
  if (!event.ParseFromArray(frame.data(), static_cast<int>(frame.size()))) {
    return Fail("its PMIx server says what cannot be read", /*ended=*/true);
  }
  switch (event.kind_case()) {
    case v1::PmixEvent::kUp:
      used_ = true;
      if (event.up().fence().data().size() > kMostData) {
        return Fail(absl::StrCat("its ranks put ", event.up().fence().data().size(),
                                 " bytes for one PMIx fence; ", kMostData, " is the most"),
                    /*ended=*/false);
      }
      return hooks_.up(std::move(*event.mutable_up()));
    case v1::PmixEvent::kAbort:
      return hooks_.abort(event.abort().rank(), event.abort().code());
    case v1::PmixEvent::kFailed:
      return Fail(std::move(*event.mutable_failed()), /*ended=*/false);
    case v1::PmixEvent::KIND_NOT_SET:
      return;
  }
}

void PmixGate::Fail(std::string why, bool ended) {
  if (std::exchange(failed_, true) || done_) return;
  hooks_.failed(std::move(why), ended);
}

void PmixGate::OnDown(const v1::PmixDown& down) {
  if (channel_ == nullptr) return;
  v1::PmixRequest request;
  *request.mutable_down() = down;
  if (absl::Status sent = channel_->Send(request.SerializeAsString()); !sent.ok()) {
    Fail(absl::StrCat("cannot pass PMIx data on: ", std::string(sent.message())), /*ended=*/false);
  }
}

void PmixGate::ReadEvents() {
  if (channel_ != nullptr) channel_->ReadToEnd();
}

bool PmixGate::OnChild(pid_t pid) {
  if (!child_ || child_->pid != pid) return false;
  const auto reaped = os::TryReap(child_->pidfd.get());
  if (!reaped.ok() || !*reaped) return false;
  const os::ExitStatus status = **reaped;
  ReadEvents();
  child_.reset();
  channel_.reset();
  if (done_) {
    End(std::exchange(done_, nullptr));
    return true;
  }
  if (!used_ && starts_ < kMostStarts) {
    AwaitClient();
    return true;
  }
  Fail(absl::StrCat("its PMIx server (dtrain-agent pmix) ",
                    status.signal != 0 ? absl::StrCat("was killed by signal ", status.signal)
                                       : absl::StrCat("exited with code ", status.code),
                    ", so its ranks cannot reach the others any more"),
       /*ended=*/true);
  return true;
}

void PmixGate::End(loop::Task done) {
  if (!child_) {
    patience_.Cancel();
    std::error_code ignored;
    if (!folder_.empty()) std::filesystem::remove_all(std::exchange(folder_, ""), ignored);
    if (ignored)
      log::Warn(absl::StrCat("files of the PMIx server stay behind: ", ignored.message()));
    return done();
  }
  done_ = std::move(done);
  channel_.reset();  // it ends by that
  patience_.After(kEndPatience, [this] {
    if (child_) (void)os::SendSignal(child_->pidfd.get(), SIGKILL);
  });
}

}  // namespace dtrain::shepherd
