// SPDX-License-Identifier: Apache-2.0
#include "runtime/nccl/event_pool.h"

#include <string>

namespace dtrain::runtime {

EventPool::~EventPool() {
  if (left_.load() || spare_.empty()) return;
  const Device::Scope scope(*device_);
  for (const abi::CuEvent event : spare_) cuda_.event_destroy(event);
}

Result<DeviceCommunicator::Point> EventPool::Record(abi::CuStream stream) {
  const Device::Scope scope(*device_);
  abi::CuEvent event = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (!spare_.empty()) {
      event = spare_.back();
      spare_.pop_back();
    }
  }
  int code = abi::kCudaSuccess;
  if (event == nullptr) code = cuda_.event_create(&event, abi::kCuEventDisableTiming);
  if (code != abi::kCudaSuccess) {
    return Error{DTRAIN_ERROR_DEVICE, "making an event failed: " + cuda_.Text(code)};
  }
  DeviceCommunicator::Point point(event, [pool = shared_from_this()](void* back) {
    const std::lock_guard lock(pool->mutex_);
    pool->spare_.push_back(static_cast<abi::CuEvent>(back));
  });
  code = cuda_.event_record(event, stream);
  if (code == abi::kCudaSuccess) return point;
  return Error{DTRAIN_ERROR_DEVICE, "recording an event failed: " + cuda_.Text(code)};
}

}  // namespace dtrain::runtime
