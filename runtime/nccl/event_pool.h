// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/base/device.h"
#include "runtime/nccl/device.h"

namespace dtrain::runtime {

// Events of the driver, used again and again. Any thread; outlives whoever still has one.
class EventPool : public std::enable_shared_from_this<EventPool> {
 public:
  EventPool(const CudaApi& cuda, std::shared_ptr<const Device> device)
      : cuda_(cuda), device_(std::move(device)) {}
  ~EventPool();

  // A point of `stream`'s work as it is now.
  Result<DeviceCommunicator::Point> Record(abi::CuStream stream);

  // After a call that hangs the next one might hang, too: from here on nothing is given back.
  void Leave() { left_.store(true); }

 private:
  const CudaApi& cuda_;
  const std::shared_ptr<const Device> device_;
  std::atomic<bool> left_{false};
  std::mutex mutex_;
  std::vector<abi::CuEvent> spare_;
};

inline abi::CuEvent EventOf(const DeviceCommunicator::Point& point) {
  return static_cast<abi::CuEvent>(point.get());
}

}  // namespace dtrain::runtime
