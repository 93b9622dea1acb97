// SPDX-License-Identifier: Apache-2.0
#include "agent/node_readers.h"

#include <utility>

#include "agent/inventory/inventory.h"

namespace dtrain::agent {

NodeReaders::NodeReaders(loop::Loop& loop) : loop_(loop) {
  ReadGpus([this](inventory::GpuReport report) {
    first_pending_ = false;
    if (waiting_.empty()) gpus_ = std::move(report);
    for (auto& done : std::exchange(waiting_, {})) Tell(report, done);
  });
}

session::Readers NodeReaders::readers() {
  return {
      [this](absl::AnyInvocable<void(v1::Inventory)> done) { Read(std::move(done)); },
      [this](absl::AnyInvocable<void(inventory::GpuReport)> done) { ReadGpus(std::move(done)); }};
}

void NodeReaders::ReadGpus(absl::AnyInvocable<void(inventory::GpuReport)> done) {
  pool_.Run([this, done = std::move(done)]() mutable {
    inventory::GpuReport report = inventory::ReadGpus(inventory::GpuOptionsFromEnvironment());
    loop_.Post([report = std::move(report), done = std::move(done)]() mutable {
      done(std::move(report));
    });
  });
}

// The first look serves the first who asks: it is what makes a start fast. Later ones look again.
void NodeReaders::Read(absl::AnyInvocable<void(v1::Inventory)> done) {
  if (first_pending_) {
    waiting_.push_back(std::move(done));
  } else if (gpus_.has_value()) {
    inventory::GpuReport report = *std::move(gpus_);
    gpus_.reset();
    Tell(report, done);
  } else {
    ReadGpus([this, done = std::move(done)](inventory::GpuReport report) mutable {
      Tell(report, done);
    });
  }
}

void NodeReaders::Tell(const inventory::GpuReport& report,
                       absl::AnyInvocable<void(v1::Inventory)>& done) {
  v1::Inventory inventory = inventory::ReadInventory();
  inventory::SetGpus(report, inventory);
  done(std::move(inventory));
}

}  // namespace dtrain::agent
