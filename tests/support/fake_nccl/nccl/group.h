// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "tests/support/fake_nccl/nccl/comm.h"
#include "tests/support/fake_nccl/nccl/operation.h"

// What ncclGroupStart and ncclGroupEnd enclose; every call is a group of its own otherwise.
namespace fake_nccl {

// Anything but communication: runs on the host.
struct HostTask {
  ncclComm* comm = nullptr;
  bool ends = false;  // the communicator: it is over when the call returns
  std::function<int()> run;
};

// A collective, or a send or receive.
struct DeviceTask {
  ncclComm* comm = nullptr;
  void* stream = nullptr;
  std::optional<Operation> operation;
  Transfer transfer;
  size_t bytes = 0;
};

void BeginGroup();
// A result code.
int Add(HostTask task);
int Add(const DeviceTask& task);
// Remembers the group's first error, and returns it.
int Spoil(int code);
// At the outermost level runs what was added; the first error drops it all.
int EndGroup();

// Of one communicator.
int Launch(ncclComm& comm, std::vector<DeviceTask> tasks);
// Whether they would wait for the other ranks to connect.
bool WouldConnect(const ncclComm& comm, const std::vector<DeviceTask>& tasks);

}  // namespace fake_nccl
