// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_nccl/nccl/witness.h"

#include <unistd.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "tests/support/fake_nccl/nccl/codes.h"

namespace fake_nccl {
namespace {

constexpr int kDevices = 64;

struct Device {
  volatile int word = 0;       // TSan reports whoever writes it without order
  std::atomic<pid_t> user{0};  // the thread inside
  std::atomic<int> depth{0};   // of that thread
  std::mutex mutex;
  std::set<pid_t> threads;
};

Device& At(int device) {
  static auto* const devices = new Device[kDevices];
  return devices[device % kDevices];
}

void SeeFirstCall() {
  int unknown = -1;
  auto& first = TheWitness().first_thread_is_main;
  if (!first.compare_exchange_strong(unknown, gettid() == getpid() ? 1 : 0)) return;
  // As NCCL for what nccl.conf has.
  if (getenv("FAKE_NCCL_CONF") != nullptr) setenv("NCCL_FAKE_CONF_WAS_READ", "1", 1);
}

}  // namespace

Witness& TheWitness() {
  static auto* const witness = new Witness;
  return *witness;
}

void Most(std::atomic<int>& most, int value) {
  int before = most.load();
  while (before < value && !most.compare_exchange_weak(before, value)) {
  }
}

DeviceCall::DeviceCall(int device) : device_(device) {
  SeeFirstCall();
  Device& at = At(device);
  at.word = at.word + 1;
  pid_t nobody = 0;
  const pid_t me = gettid();
  if (!at.user.compare_exchange_strong(nobody, me) && nobody != me) {
    TheWitness().device_overlaps.fetch_add(1);
  }
  at.depth.fetch_add(1);
  const std::lock_guard lock(at.mutex);
  at.threads.insert(me);
  Most(TheWitness().device_threads, static_cast<int>(at.threads.size()));
}

DeviceCall::~DeviceCall() {
  Device& at = At(device_);
  if (at.depth.fetch_sub(1) == 1) at.user.store(0);
  at.word = at.word + 1;
}

}  // namespace fake_nccl

FAKE_EXPORT int fake_nccl_count(const char* name) {
  fake_nccl::Witness& w = fake_nccl::TheWitness();
  const std::map<std::string, std::atomic<int>*> all = {
      {"calls", &w.calls},
      {"threads", &w.threads},
      {"in_flight", &w.in_flight},
      {"overlaps", &w.overlaps},
      {"device_overlaps", &w.device_overlaps},
      {"device_threads", &w.device_threads},
      {"ended_inside", &w.ended_inside},
      {"after_end", &w.after_end},
      {"jobs_lost", &w.jobs_lost},
      {"joined_twice", &w.joined_twice},
      {"connects", &w.connects},
      {"full", &w.full},
      {"aborts", &w.aborts},
      {"destroys", &w.destroys},
      {"registered", &w.registered},
      {"freed_registered", &w.freed_registered},
      {"lost_footing", &w.lost_footing},
      {"ended_registered", &w.ended_registered},
      {"first_thread_is_main", &w.first_thread_is_main}};
  const auto found = all.find(name);
  return found == all.end() ? -1 : found->second->load();
}
