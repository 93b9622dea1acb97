// SPDX-License-Identifier: Apache-2.0
#include "agent/session/node_readers.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/inventory/inventory.h"

namespace dtrain::session {
namespace {

// How old an answer may be for who only wants to know, and the first look for anybody.
constexpr Duration kFresh = std::chrono::seconds(1);
// An inventory without its GPUs is read again after this time.
constexpr Duration kSame = std::chrono::milliseconds(100);
// A driver that has to wake its GPUs takes a second or two; one that hangs is worth telling of.
constexpr Duration kGpuPatience = std::chrono::seconds(3);
// For a launch, whose start would fail without them: eight GPUs without persistence mode take up to
// ten seconds.
constexpr Duration kLaunchPatience = std::chrono::seconds(20);
constexpr char kNoAnswer[] =
    "NVIDIA's driver (NVML) does not answer; see the kernel log of the node for NVRM lines";

}  // namespace

NodeReaders::NodeReaders(loop::Loop& loop, std::string program)
    : loop_(loop),
      looks_(loop, program, kLaunchPatience),
      watches_(loop, std::move(program)),
      patience_(loop) {
  ReadGpus([this](inventory::GpuReport report) {
    first_pending_ = false;
    first_at_ = loop_.Now();
    if (waiting_.empty()) {
      gpus_ = std::move(report);
      return;
    }
    for (auto& done : std::exchange(waiting_, {})) Tell(report, done);
  });
}

Readers NodeReaders::readers() {
  return {
      [this](Done done) { Read(std::move(done)); },
      [this](absl::AnyInvocable<void(inventory::GpuReport)> done) { ReadGpus(std::move(done)); },
      [this](Done done) { ReadStatus(std::move(done)); }, [this](Done done) { done(ReadRest()); },
      [this](const std::vector<std::string>& uuids, inventory::GpuWatches::OnStates on_states) {
        return watches_.Begin(uuids, std::move(on_states));
      }};
}

void NodeReaders::ReadGpus(inventory::GpuLook::Done done) {
  // Shared, as it is still ours when the pool does not take it.
  auto shared = std::make_shared<inventory::GpuLook::Done>(std::move(done));
  const absl::Status queued = pool_.TryRun([this, shared] {
    auto none = inventory::ReadWithoutLibrary(inventory::GpuOptionsFromEnvironment());
    loop_.Post([this, shared, none = std::move(none)]() mutable {
      if (none) return (*shared)(*std::move(none));
      looks_.Look(std::move(*shared));
    });
  });
  if (queued.ok()) return;
  inventory::GpuReport report;
  report.error = absl::StrCat("they cannot be looked at: ", queued.message());
  loop_.Post([shared, report = std::move(report)]() mutable { (*shared)(std::move(report)); });
}

// The first look serves who asks at once: it is what makes a start by ssh fast. Later ones look
// again.
void NodeReaders::Read(Done done) {
  if (first_pending_) {
    waiting_.push_back(std::move(done));
  } else if (gpus_.has_value() && loop_.Now() < first_at_ + kFresh) {
    inventory::GpuReport report = *std::move(gpus_);
    gpus_.reset();
    Tell(report, done);
  } else {
    ReadGpus([this, done = std::move(done)](inventory::GpuReport report) mutable {
      Tell(report, done);
    });
  }
}

void NodeReaders::ReadStatus(Done done) {
  if (status_.has_value() && loop_.Now() < status_at_ + kFresh) return done(*status_);
  status_waiting_.push_back(std::move(done));
  if (status_waiting_.size() == 1) patience_.After(kGpuPatience, [this] { GiveUpOnGpus(); });
  if (std::exchange(status_pending_, true)) return;
  if (first_pending_) {  // it is as good, and a second one may take seconds more
    waiting_.push_back([this](v1::Inventory inventory) {
      status_pending_ = false;
      OnStatus(std::move(inventory));
    });
    return;
  }
  ReadGpus([this](const inventory::GpuReport& report) { ReadRestOfStatus(report); });
}

void NodeReaders::ReadRestOfStatus(const inventory::GpuReport& gpus) {
  const auto read = [this, gpus] {
    v1::Inventory inventory = inventory::ReadInventory();
    inventory::SetGpus(gpus, inventory);
    xids_.Note(inventory);
    loop_.Post([this, inventory = std::move(inventory)]() mutable {
      status_pending_ = false;
      OnStatus(std::move(inventory));
    });
  };
  // Where the pool has no thread, nobody else uses what is the pool's.
  if (!pool_.TryRun(read).ok()) read();
}

void NodeReaders::OnStatus(v1::Inventory inventory) {
  patience_.Cancel();
  status_ = std::move(inventory);
  status_at_ = loop_.Now();
  for (Done& done : std::exchange(status_waiting_, {})) done(*status_);
}

void NodeReaders::GiveUpOnGpus() {
  v1::Inventory inventory = inventory::ReadInventory();
  inventory.set_gpu_error(kNoAnswer);
  OnStatus(std::move(inventory));
}

// Many may wait for one look at the GPUs.
v1::Inventory NodeReaders::ReadRest() {
  if (!rest_.has_value() || loop_.Now() >= rest_at_ + kSame) {
    rest_ = inventory::ReadInventory();
    rest_at_ = loop_.Now();
  }
  return *rest_;
}

void NodeReaders::Tell(const inventory::GpuReport& report, Done& done) {
  v1::Inventory inventory = ReadRest();
  inventory::SetGpus(report, inventory);
  done(std::move(inventory));
}

}  // namespace dtrain::session
