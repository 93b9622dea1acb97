// SPDX-License-Identifier: Apache-2.0
#include "agent/inventory/gpu_look.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"
#include "common/os/environment.h"
#include "common/os/fd.h"
#include "common/os/pidfd.h"

namespace dtrain::inventory {
namespace {

constexpr size_t kMostBytes = 16 << 20;  // a thousand GPUs with their processes have less

}  // namespace

GpuLook::GpuLook(loop::Loop& loop, const std::string& program, Duration patience, Done done,
                 loop::Task on_over)
    : loop_(loop), done_(std::move(done)), on_over_(std::move(on_over)), patience_(loop) {
  auto pipe = os::Pipe();
  if (!pipe.ok()) {
    Fail(std::string(pipe.status().message()));
    return;
  }
  output_ = std::move(pipe->first);
  // It has nothing of ours but that pipe: what cannot be killed would keep an ssh session open.
  os::SpawnSpec spec;
  spec.argv = {program, "gpus"};
  spec.env = os::OwnEnvironment();
  spec.stdout_fd = pipe->second.get();
  spec.parent_death_signal = SIGKILL;
  auto child = os::Spawn(spec);
  if (!child.ok()) {
    Fail(std::string(child.status().message()));
    return;
  }
  child_ = *std::move(child);
  (void)fcntl(output_.get(), F_SETFL, O_NONBLOCK);
  ended_ = std::make_unique<loop::FdWatch>(loop_, child_.pidfd.get());
  ended_->OnReadable([this] { Reap(); });
  readable_ = std::make_unique<loop::FdWatch>(loop_, output_.get());
  readable_->OnReadable([this] { Read(); });
  patience_.After(patience, [this, patience] {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(patience).count();
    Fail(absl::StrCat("NVIDIA's driver (NVML) did not answer within ", seconds,
                      " s; see the kernel log of the node for NVRM lines, and try nvidia-smi"));
  });
}

GpuLook::~GpuLook() {
  if (child_.pidfd) (void)os::SendSignal(child_.pidfd.get(), SIGKILL);
}

void GpuLook::Read() {
  char buffer[16 << 10];
  const ssize_t n = read(output_.get(), buffer, sizeof(buffer));
  if (n > 0) bytes_.append(buffer, static_cast<size_t>(n));
  if ((n > 0 && bytes_.size() <= kMostBytes) || (n < 0 && (errno == EAGAIN || errno == EINTR))) {
    readable_->OnReadable([this] { Read(); });
    return;
  }
  v1::Inventory told;
  if (n != 0 || bytes_.empty() || !told.ParseFromString(bytes_)) {
    return Fail("the query ended early: NVML may have crashed; try nvidia-smi");
  }
  GpuReport report;
  report.gpus = {told.gpus().begin(), told.gpus().end()};
  report.driver = told.gpu_driver();
  report.error = told.gpu_error();
  report.warnings = {told.warnings().begin(), told.warnings().end()};
  Tell(std::move(report));
}

void GpuLook::Reap() {
  auto status = os::TryReap(child_.pidfd.get());
  if (status.ok() && !status->has_value()) return ended_->OnReadable([this] { Reap(); });
  loop_.Post([pidfd = std::move(child_.pidfd), ended = std::move(ended_)] {});
  TellIfOver();
}

void GpuLook::Fail(const std::string& why) {
  if (child_.pidfd) (void)os::SendSignal(child_.pidfd.get(), SIGKILL);
  GpuReport report;
  report.error = why;
  Tell(std::move(report));
}

// Posted: the caller may be the constructor, or destroy this.
void GpuLook::Tell(GpuReport report) {
  patience_.Cancel();
  readable_.reset();
  loop_.Post([done = std::exchange(done_, nullptr), report = std::move(report)]() mutable {
    if (done) done(std::move(report));
  });
  TellIfOver();
}

void GpuLook::TellIfOver() {
  if (over() && on_over_) loop_.Post(std::exchange(on_over_, nullptr));
}

int TellGpus() {
  v1::Inventory told;
  // Never empty: that is what a crash looks like.
  told.set_hostname("gpus");
  SetGpus(ReadGpus(GpuOptionsFromEnvironment()), told);
  const std::string bytes = told.SerializeAsString();
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = write(STDOUT_FILENO, bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return kExitStartAgents;
    done += static_cast<size_t>(n);
  }
  return kExitOk;
}

}  // namespace dtrain::inventory
