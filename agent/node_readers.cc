// SPDX-License-Identifier: Apache-2.0
#include "agent/node_readers.h"

#include <utility>

#include "agent/inventory/inventory.h"

namespace dtrain::agent {

NodeReaders::NodeReaders(loop::Loop& loop) : loop_(loop) {
  ReadGpus([this](inventory::GpuReport report) {
    gpus_ = std::move(report);
    for (auto& done : std::exchange(waiting_, {})) Read(std::move(done));
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

void NodeReaders::Read(absl::AnyInvocable<void(v1::Inventory)> done) {
  if (!gpus_.has_value()) {
    waiting_.push_back(std::move(done));
    return;
  }
  v1::Inventory inventory = inventory::ReadInventory();
  inventory::SetGpus(*gpus_, inventory);
  done(std::move(inventory));
}

}  // namespace dtrain::agent
