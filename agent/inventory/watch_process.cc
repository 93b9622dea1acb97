// SPDX-License-Identifier: Apache-2.0
#include "agent/inventory/watch_process.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "agent/inventory/nvml.h"
#include "agent/inventory/nvml_library.h"
#include "agent/inventory/xid_watch.h"
#include "common/base/exit_code.h"

namespace dtrain::inventory {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr unsigned kMostWatched = 1024;  // what a broken library may make us loop over
constexpr int kMostXids = 64;            // kept of a GPU, each number once
// While NVML's events are waited for nobody looks into the kernel log, which has a few more.
constexpr milliseconds kKernelLogPause = std::chrono::seconds(1);

class Watcher {
 public:
  Watcher(std::unique_ptr<NvmlLibrary> nvml, const std::string& kernel_log)
      : nvml_(std::move(nvml)), kernel_(kernel_log) {}

  bool Find(const std::vector<std::string>& uuids);
  // Until nobody reads.
  void Run(milliseconds period);

 private:
  struct Device {
    NvmlDevice handle = nullptr;
    std::string pci_address;  // without the function
    v1::GpuState state;
  };
  void Await(steady_clock::time_point until);
  void TakeKernelLog();
  void NoteXid(Device& device, uint64_t number);
  void Sample(Device& device);
  bool Tell();

  const std::unique_ptr<NvmlLibrary> nvml_;
  XidWatch kernel_;
  std::vector<Device> devices_;
  bool events_ = false;  // NVML tells of errors as they happen
  bool news_ = false;
};

bool Watcher::Find(const std::vector<std::string>& uuids) {
  unsigned count = 0;
  if (nvml_->Count(count) != kNvmlOk) return false;
  for (unsigned index = 0; index < std::min(count, kMostWatched); ++index) {
    Device device;
    std::string uuid;
    if (nvml_->Device(index, device.handle) != kNvmlOk) continue;
    if (nvml_->Uuid(device.handle, uuid) != kNvmlOk) continue;
    if (std::find(uuids.begin(), uuids.end(), uuid) == uuids.end()) continue;
    device.state.set_index(index);
    device.state.set_uuid(uuid);
    NvmlPci pci;
    if (nvml_->Pci(device.handle, pci) == kNvmlOk) {
      device.pci_address = absl::StrFormat("%04x:%02x:%02x", pci.domain, pci.bus, pci.device);
    }
    events_ |= nvml_->RegisterErrors(device.handle) == kNvmlOk;
    devices_.push_back(std::move(device));
  }
  return !devices_.empty();
}

void Watcher::Run(milliseconds period) {
  while (true) {
    const auto due = steady_clock::now() + period;
    for (Device& device : devices_) Sample(device);
    if (!Tell()) return;
    while (!news_ && steady_clock::now() < due) Await(due);
    news_ = false;
  }
}

// Waits for an error until then, or for some time less.
void Watcher::Await(steady_clock::time_point until) {
  auto left = std::chrono::ceil<milliseconds>(until - steady_clock::now());
  if (kernel_.fd() >= 0 && events_) left = std::min(left, kKernelLogPause);
  const auto wait = static_cast<int>(std::max(left, milliseconds(0)).count());
  if (events_) {
    NvmlEvent event;
    const int code = nvml_->WaitForError(static_cast<unsigned>(wait), event);
    if (code == kNvmlOk) {
      for (Device& device : devices_) {
        if (device.handle == event.device && event.xid) NoteXid(device, event.number);
      }
      news_ |= !event.xid;  // the counters tell
    } else if (code == kNvmlGpuIsLost) {
      news_ = true;
    }
    events_ = code == kNvmlOk || code == kNvmlTimeout;
  } else {
    pollfd log{kernel_.fd(), POLLIN, 0};
    // One that is not there is passed over.
    (void)poll(&log, 1, wait);
    // A log that is at an end for good, as of a container, must not keep us busy.
    if ((log.revents & POLLIN) == 0 && log.revents != 0) (void)poll(nullptr, 0, wait);
  }
  TakeKernelLog();
}

void Watcher::TakeKernelLog() {
  for (const auto& [address, number] : kernel_.TakeNew()) {
    for (Device& device : devices_) {
      if (device.pci_address == address) NoteXid(device, number);
    }
  }
}

void Watcher::NoteXid(Device& device, uint64_t number) {
  const auto& known = device.state.xids();
  if (number > UINT32_MAX || known.size() >= kMostXids ||
      std::find(known.begin(), known.end(), number) != known.end()) {
    return;
  }
  device.state.add_xids(static_cast<uint32_t>(number));
  news_ = true;
}

// What the GPU does not tell stays away, and what it told last of its errors stays.
void Watcher::Sample(Device& device) {
  v1::GpuState& state = device.state;
  const auto call = [&state](int code) {
    if (state.fault().empty()) state.set_fault(FaultText(code));
    return code == kNvmlOk;
  };
  unsigned percent = 0, milliwatts = 0, celsius = 0;
  unsigned long long errors = 0;
  NvmlMemory memory;
  state.clear_utilisation_percent();
  state.clear_memory_used_bytes();
  state.clear_power_milliwatts();
  state.clear_temperature_celsius();
  if (call(nvml_->Utilisation(device.handle, percent))) state.set_utilisation_percent(percent);
  if (call(nvml_->Power(device.handle, milliwatts))) state.set_power_milliwatts(milliwatts);
  if (call(nvml_->Temperature(device.handle, celsius))) state.set_temperature_celsius(celsius);
  if (call(nvml_->Memory(device.handle, memory))) {
    state.set_memory_used_bytes(memory.used);
    state.set_memory_total_bytes(memory.total);
  }
  if (call(nvml_->UncorrectedEccErrors(device.handle, errors))) {
    state.set_uncorrected_ecc_errors(errors);
  }
}

bool Watcher::Tell() {
  v1::GpuStates states;
  for (const Device& device : devices_) *states.add_gpus() = device.state;
  states.set_unix_nanos(absl::GetCurrentTimeNanos());
  const std::string bytes = states.SerializeAsString();
  std::string frame;
  for (int shift = 0; shift < 32; shift += 8) {
    frame.push_back(static_cast<char>(bytes.size() >> shift & 0xff));
  }
  frame += bytes;
  for (size_t done = 0; done < frame.size();) {
    const ssize_t n = send(STDOUT_FILENO, frame.data() + done, frame.size() - done, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

}  // namespace

int WatchGpus(milliseconds period, const std::vector<std::string>& uuids,
              const std::string& kernel_log) {
  auto nvml = NvmlLibrary::Open(GpuOptionsFromEnvironment().library);
  if (!nvml.ok() || (*nvml)->Init() != kNvmlOk) return kExitStartAgents;
  Watcher watcher(*std::move(nvml), kernel_log);
  if (!watcher.Find(uuids)) return kExitStartAgents;
  watcher.Run(period);
  return kExitOk;
}

}  // namespace dtrain::inventory
