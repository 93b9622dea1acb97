// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "tests/support/fake_nccl/nccl/operation.h"

struct ncclComm;

// Memory in which kernels of several ranks work directly.
namespace fake_nccl {

struct Registration {
  const char* begin = nullptr;
  size_t bytes = 0;
  std::atomic<bool> gone{false};  // also for kernels that still work in it
};
using Registered = std::vector<std::shared_ptr<Registration>>;

// What the call finds registered of its buffers. Ranks that find any exchange how they use it, and
// wait for all ranks to do so; where these are not alike, nobody ever gets on.
int ExchangeRegistered(ncclComm& comm, const Operation& operation, Registered& used);
int ExchangeRegistered(ncclComm& comm, const std::vector<Transfer>& transfers, Registered& used);

}  // namespace fake_nccl
