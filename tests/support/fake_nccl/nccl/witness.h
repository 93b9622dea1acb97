// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

// What the fake has seen in this process. Tests read it with fake_nccl_count(name).
namespace fake_nccl {

struct Witness {
  std::atomic<int> calls{0};            // that may not be made concurrently
  std::atomic<int> threads{0};          // made for calls
  std::atomic<int> in_flight{0};        // the most of one communicator at a time
  std::atomic<int> overlaps{0};         // a second thread in a communicator
  std::atomic<int> device_overlaps{0};  // a second thread with a device's communicators
  std::atomic<int> device_threads{0};   // the most that have ever called for one device
  std::atomic<int> ended_inside{0};     // communicators freed with another thread inside
  std::atomic<int> after_end{0};        // calls with a communicator that is gone
  std::atomic<int> jobs_lost{0};        // whose thread went, or began another one, before their end
  std::atomic<int> joined_twice{0};     // jobs joined by two threads at a time
  std::atomic<int> connects{0};         // calls that waited for the other ranks
  std::atomic<int> full{0};             // calls that waited for room
  std::atomic<int> aborts{0};
  std::atomic<int> destroys{0};
  std::atomic<int> registered{0};        // collectives whose buffers are registered
  std::atomic<int> freed_registered{0};  // memory that went while it was registered
  std::atomic<int> lost_footing{0};      // kernels whose registered buffers went under them
  std::atomic<int> ended_registered{0};  // communicators destroyed with registered buffers
  std::atomic<int> first_thread_is_main{-1};
};

Witness& TheWitness();
void Most(std::atomic<int>& most, int value);

// A function of the API that touches a device: writes the device's unlocked word.
class DeviceCall {
 public:
  explicit DeviceCall(int device);
  ~DeviceCall();
  DeviceCall(const DeviceCall&) = delete;
  DeviceCall& operator=(const DeviceCall&) = delete;

 private:
  const int device_;
};

}  // namespace fake_nccl
