// SPDX-License-Identifier: Apache-2.0
#include "agent/session/job_gpus.h"

#include <chrono>
#include <utility>

namespace dtrain::session {
namespace {

// For a look at GPUs that are awake, as their watch has the driver open: some milliseconds. Who has
// given up on it after that time has met a driver that hangs.
constexpr Duration kDriverPatience = std::chrono::seconds(3);
constexpr char kDriverHangs[] =
    "NVIDIA's driver (NVML) has not answered for some time; see the kernel log of the node for "
    "NVRM lines";

v1::SessionEvent EventOf(const v1::GpuStates& states) {
  v1::SessionEvent event;
  *event.mutable_gpus() = states;
  return event;
}

}  // namespace

JobGpus::JobGpus(const Surroundings& agent, ShepherdChannel& shepherd, Handlers handlers)
    : agent_(agent),
      shepherd_(shepherd),
      handlers_(std::make_shared<Handlers>(std::move(handlers))) {}

// From when the part has come, before the workers start, until their GPUs are given back.
void JobGpus::Watch(const std::set<std::string>& uuids) {
  if (!uuids_.empty() || uuids.empty() || !agent_.readers.watch) return;
  uuids_ = uuids;
  const std::vector<std::string> known = errors_.Known(uuids);
  if (known.empty()) return;
  watch_ = agent_.readers.watch(known, [this](const v1::GpuStates& states) {
    if (errors_.OnStates(states)) return SayErrors();
    const std::shared_ptr<Handlers> handlers = handlers_;
    handlers->on_sample(errors_.states());
  });
}

void JobGpus::Look() {
  // That the driver hangs is known already, and another look would take as long to find it out.
  if (watch_ != nullptr && watch_->hangs()) {
    if (errors_.OnHang(uuids_)) SayErrors();
    return agent_.loop.Post([this, alive = alive_] {
      if (!*alive) return;
      const std::shared_ptr<Handlers> handlers = handlers_;
      handlers->on_seen(GpusSeen{{}, kDriverHangs, {}});
    });
  }
  looking_since_ = agent_.loop.Now();
  agent_.readers.gpus([this, alive = alive_](inventory::GpuReport report) {
    if (*alive) OnLooked(std::move(report));
  });
}

void JobGpus::OnLooked(inventory::GpuReport report) {
  const std::shared_ptr<Handlers> handlers = handlers_;
  const std::vector<uint32_t> living = shepherd_.processes().Living();
  looking_since_ = kNever;
  if (errors_.OnLook(report.gpus, uuids_)) SayErrors();
  handlers->on_seen(GpusSeen{std::move(report.gpus), std::move(report.error), living});
}

// What they have reported goes before the word that they are free. A look may have been given up.
void JobGpus::OnGivenBack() {
  const bool watched = std::exchange(watch_, nullptr) != nullptr;
  const TimePoint since = std::exchange(looking_since_, kNever);
  if (!watched || since == kNever || agent_.loop.Now() - since < kDriverPatience) return;
  if (errors_.OnHang(uuids_)) SayErrors();
}

std::optional<v1::SessionEvent> JobGpus::errors() const {
  if (!errors_.any()) return std::nullopt;
  return EventOf(errors_.states());
}

void JobGpus::SayErrors() {
  const std::shared_ptr<Handlers> handlers = handlers_;
  handlers->on_errors(EventOf(errors_.states()));
}

}  // namespace dtrain::session
