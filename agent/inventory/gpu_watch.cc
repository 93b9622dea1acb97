// SPDX-License-Identifier: Apache-2.0
#include "agent/inventory/gpu_watch.h"

#include <signal.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log/log.h"
#include "common/os/environment.h"
#include "common/os/fd.h"
#include "common/os/pidfd.h"

namespace dtrain::inventory {
namespace {

// A driver takes a second or two for what it does, and ten to wake eight GPUs.
constexpr int kPeriodsOfSilence = 2;
// For this process, which may not have run, to read what has come meanwhile.
constexpr Duration kForReading = std::chrono::seconds(1);

}  // namespace

struct GpuWatches::Child {
  explicit Child(loop::Loop& loop) : silence(loop) {}

  os::Child process;                    // without a pidfd: it has been reaped
  std::shared_ptr<OnStates> on_states;  // null: nobody wants to hear it any more
  bool hangs = false;
  loop::Timer silence;
  std::unique_ptr<loop::FrameChannel> channel;
  std::unique_ptr<loop::FdWatch> ended;
};

GpuWatches::GpuWatches(loop::Loop& loop, std::string program, std::chrono::milliseconds period)
    : loop_(loop), program_(std::move(program)), period_(period) {}

GpuWatches::~GpuWatches() {
  *alive_ = false;
  for (const Child& child : children_) {
    if (child.process.pidfd) (void)os::SendSignal(child.process.pidfd.get(), SIGKILL);
  }
}

std::unique_ptr<GpuWatches::Watch> GpuWatches::Begin(const std::vector<std::string>& uuids,
                                                     OnStates on_states) {
  const auto failed = [](const absl::Status& why) {
    log::Warn(absl::StrCat("the job's GPUs are not watched: ", why.message()));
    return nullptr;
  };
  auto sockets = os::SocketPair();
  if (!sockets.ok()) return failed(sockets.status());
  os::SpawnSpec spec;
  spec.argv = {program_, "gpuwatch", absl::StrCat(period_.count())};
  spec.argv.insert(spec.argv.end(), uuids.begin(), uuids.end());
  // Nothing of ours but that socket: what cannot be killed would keep an ssh session open.
  spec.env = os::OwnEnvironment();
  spec.stdout_fd = sockets->second.get();
  spec.parent_death_signal = SIGKILL;
  auto process = os::Spawn(spec);
  if (!process.ok()) return failed(process.status());
  Child& child = children_.emplace_back(loop_);
  child.process = *std::move(process);
  child.on_states = std::make_shared<OnStates>(std::move(on_states));
  child.channel = std::make_unique<loop::FrameChannel>(
      loop_, std::move(sockets->first),
      [this, &child](absl::string_view frame, const os::UniqueFd&) { OnFrame(child, frame); },
      [](const absl::Status&) {}, loop::FrameChannel::Descriptors::kRefused);
  child.ended = std::make_unique<loop::FdWatch>(loop_, child.process.pidfd.get());
  child.ended->OnReadable([this, &child] { Reap(child); });
  AwaitFrame(child);
  return std::unique_ptr<Watch>(new Watch(*this, child));
}

void GpuWatches::OnFrame(Child& child, absl::string_view frame) {
  v1::GpuStates states;
  if (!states.ParseFromArray(frame.data(), static_cast<int>(frame.size()))) return;
  AwaitFrame(child);
  // It may end the watch.
  if (const auto on_states = child.on_states) (*on_states)(std::move(states));
}

void GpuWatches::AwaitFrame(Child& child) {
  child.hangs = false;
  child.silence.After(kPeriodsOfSilence * period_, [&child] {
    child.silence.After(kForReading, [&child] { child.hangs = true; });
  });
}

void GpuWatches::Reap(Child& child) {
  const auto status = os::TryReap(child.process.pidfd.get());
  if (status.ok() && !status->has_value()) {
    return child.ended->OnReadable([this, &child] { Reap(child); });
  }
  child.silence.Cancel();
  child.hangs = false;
  // Posted: this is called by what goes away with it.
  loop_.Post([this, alive = alive_, &child] {
    if (!*alive) return;
    child.ended.reset();
    child.process.pidfd = os::UniqueFd();
    ForgetIfOver(&child);
  });
}

void GpuWatches::LetGo(Child& child) {
  child.on_states = nullptr;
  if (child.process.pidfd) (void)os::SendSignal(child.process.pidfd.get(), SIGKILL);
  // Posted: a frame of it may be what led here.
  loop_.Post([this, alive = alive_, &child] {
    if (*alive) ForgetIfOver(&child);
  });
}

// By its address: it may be forgotten already.
void GpuWatches::ForgetIfOver(const Child* child) {
  children_.remove_if([child](const Child& each) {
    return &each == child && each.on_states == nullptr && !each.process.pidfd;
  });
}

GpuWatches::Watch::~Watch() { all_.LetGo(child_); }

bool GpuWatches::Watch::hangs() const { return child_.hangs; }

}  // namespace dtrain::inventory
