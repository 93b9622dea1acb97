// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

// The part of NVIDIA's management library (NVML) that we call, opened at run time: nodes without
// GPUs lack it. Its binary interface is stable: a function's layout never changes, a new one gets
// a new suffix.
namespace dtrain::inventory {

// Return codes that mean something to us.
enum NvmlCode : int {
  kNvmlOk = 0,
  kNvmlNotSupported = 3,
  kNvmlNoPermission = 4,
  kNvmlInsufficientSize = 7,
  kNvmlDriverNotLoaded = 9,
  kNvmlTimeout = 10,
  kNvmlLibraryNotFound = 12,
  kNvmlFunctionNotFound = 13,
  kNvmlGpuIsLost = 15,
  kNvmlResetRequired = 16,
  kNvmlLibraryMismatch = 18,
  kNvmlUnknown = 999,
};

struct NvmlMemory {
  unsigned long long total = 0;
  unsigned long long used = 0;
};

struct NvmlPci {
  unsigned domain = 0, bus = 0, device = 0;
};

struct NvmlProcess {
  unsigned pid = 0;
  unsigned long long memory = 0;  // 0: not known
};

// Who may compute on a device, as NVML numbers it.
enum NvmlComputeMode : int { kNvmlComputeProhibited = 2, kNvmlComputeExclusiveProcess = 3 };

// Something that NVML reports of a device at the moment it happens.
struct NvmlEvent {
  void* device = nullptr;
  bool xid = false;  // else an uncorrected ECC error
  unsigned long long number = 0;
};

// One device as NVML hands it out; valid until the library closes.
using NvmlDevice = void*;

// All calls return NVML's code; one that the library lacks returns kNvmlFunctionNotFound. Where
// NVML has several versions of a call, the newest that the library has is used. One thread.
class NvmlLibrary {
 public:
  // kNotFound: there is no such library on this machine.
  static absl::StatusOr<std::unique_ptr<NvmlLibrary>> Open(const std::string& file);
  // Shuts NVML down and unloads it, so that the next opening finds a driver that was updated since.
  ~NvmlLibrary();
  NvmlLibrary(const NvmlLibrary&) = delete;
  NvmlLibrary& operator=(const NvmlLibrary&) = delete;

  int Init();
  int DriverVersion(std::string& out);
  int Count(unsigned& out);
  int Device(unsigned index, NvmlDevice& out);
  int Uuid(NvmlDevice device, std::string& out);
  int Name(NvmlDevice device, std::string& out);
  int Pci(NvmlDevice device, NvmlPci& out);
  int Memory(NvmlDevice device, NvmlMemory& out);
  int MigMode(NvmlDevice device, bool& on);
  int ComputeMode(NvmlDevice device, int& mode);
  int Utilisation(NvmlDevice device, unsigned& percent);
  int Temperature(NvmlDevice device, unsigned& celsius);
  int Power(NvmlDevice device, unsigned& milliwatts);
  // Since the driver was loaded. kNvmlNotSupported: the memory has no ECC, or it is off.
  int UncorrectedEccErrors(NvmlDevice device, unsigned long long& count);
  // Those that compute, and those that only draw.
  int ComputeProcesses(NvmlDevice device, std::vector<NvmlProcess>& out);
  int GraphicsProcesses(NvmlDevice device, std::vector<NvmlProcess>& out);
  // From now on WaitForError() tells of errors of this device.
  int RegisterErrors(NvmlDevice device);
  // Blocks; kNvmlTimeout: none has come.
  int WaitForError(unsigned timeout_ms, NvmlEvent& out);
  // NVML's words for a code; empty when it has none.
  std::string ErrorText(int code);

 private:
  explicit NvmlLibrary(void* handle) : handle_(handle) {}
  template <typename Function>
  Function* Find(const char* name) const;
  int Processes(const char* call, NvmlDevice device, std::vector<NvmlProcess>& out);

  void* const handle_;
  bool initialised_ = false;
  void* events_ = nullptr;  // of RegisterErrors; freed with the library
};

}  // namespace dtrain::inventory
