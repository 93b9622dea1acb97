// SPDX-License-Identifier: Apache-2.0
#include "agent/inventory/gpu_looks.h"

#include <algorithm>
#include <utility>

namespace dtrain::inventory {
namespace {

// Under way at a time, those included whose driver cannot even be killed out of.
constexpr size_t kMostLooks = 4;

}  // namespace

GpuLooks::GpuLooks(loop::Loop& loop, std::string program, Duration patience)
    : loop_(loop), program_(std::move(program)), patience_(patience), late_(loop) {}

void GpuLooks::Look(GpuLook::Done done) {
  waiting_.push_back(std::move(done));
  Serve();
}

void GpuLooks::Serve() {
  looks_.remove_if([](const UnderWay& each) { return each.look->over(); });
  late_.Cancel();
  if (waiting_.empty()) return;
  if (looks_.size() < kMostLooks) return Begin();
  TimePoint next = kNever;
  for (const UnderWay& each : looks_) {
    if (each.late_at > loop_.Now()) next = std::min(next, each.late_at);
  }
  if (next != kNever) return late_.At(next, [this] { Serve(); });
  GpuReport report;
  report.error =
      "NVIDIA's driver (NVML) does not answer; see the kernel log of the node for NVRM lines";
  for (GpuLook::Done& done : std::exchange(waiting_, {})) done(report);
}

void GpuLooks::Begin() {
  UnderWay& begun = looks_.emplace_back();
  begun.late_at = loop_.Now() + patience_;
  begun.look = std::make_unique<GpuLook>(
      loop_, program_, patience_,
      [callers = std::exchange(waiting_, {})](const GpuReport& report) mutable {
        for (GpuLook::Done& done : callers) done(report);
      },
      [this] { Serve(); });
}

}  // namespace dtrain::inventory
