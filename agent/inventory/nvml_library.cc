// SPDX-License-Identifier: Apache-2.0
#include "agent/inventory/nvml_library.h"

#include <dlfcn.h>

#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/text.h"

namespace dtrain::inventory {
namespace {

using NoArguments = int();
using TextCall = int(char*, unsigned);
using DeviceTextCall = int(NvmlDevice, char*, unsigned);

// nvmlMemory_t and nvmlMemory_v2_t.
struct MemoryV1 {
  unsigned long long total, free, used;
};
struct MemoryV2 {
  unsigned version;  // the caller says which layout it means
  unsigned long long total, reserved, free, used;
};

// All versions of nvmlPciInfo_t begin like this; the rest differs.
struct PciInfo {
  char bus_id_legacy[16];
  unsigned domain, bus, device;
  char rest[256];
};

// nvmlUtilization_t, in percent of the last moments.
struct UtilisationRates {
  unsigned gpu, memory;
};

// nvmlProcessInfo_v1_t, and nvmlProcessInfo_v2_t, which the calls _v2 and _v3 fill.
struct ProcessV1 {
  unsigned pid;
  unsigned long long memory;
};
struct ProcessV2 {
  unsigned pid;
  unsigned long long memory;
  unsigned gpu_instance, compute_instance;
};

// Bits of nvmlEventType.
constexpr unsigned long long kEventDoubleBitEcc = 2;
constexpr unsigned long long kEventXid = 8;

// nvmlEventData_t as _v2 of the call fills it; the first has no instances.
struct EventData {
  NvmlDevice device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};

// NVML fills the whole buffer when it fails, and ends text with a null when it does not.
std::string Text(const char* buffer, size_t size) {
  return Escape(absl::string_view(buffer, strnlen(buffer, size)));
}

template <typename Process>
int ReadProcesses(int (*call)(NvmlDevice, unsigned*, Process*), NvmlDevice device,
                  std::vector<NvmlProcess>& out) {
  constexpr unsigned long long kNotAvailable = ~0ull;
  unsigned room = 64;
  for (int tries = 0; tries < 5; ++tries) {
    // Twice the room we tell of: drivers 535.54 to 535.98 wrote entries of 32 bytes instead of 24.
    std::vector<Process> buffer(size_t{room} * 2);
    unsigned count = room;
    int code = call(device, &count, buffer.data());
    if (code == kNvmlInsufficientSize && count < 100'000) {
      room = count + 16;  // more may start meanwhile
      continue;
    }
    if (code != kNvmlOk) return code;
    for (unsigned i = 0; i < count && i < room; ++i) {
      const Process& process = buffer[i];
      if (process.pid == 0) continue;  // from those 32-byte entries
      out.push_back({process.pid, process.memory == kNotAvailable ? 0 : process.memory});
    }
    return kNvmlOk;
  }
  return kNvmlInsufficientSize;
}

}  // namespace

absl::StatusOr<std::unique_ptr<NvmlLibrary>> NvmlLibrary::Open(const std::string& file) {
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle != nullptr) return std::unique_ptr<NvmlLibrary>(new NvmlLibrary(handle));
  const char* why = dlerror();
  std::string message =
      absl::StrCat("open ", Escape(file), ": ", why == nullptr ? "unknown error" : Escape(why));
  if (absl::StrContains(message, "cannot open shared object file: No such file")) {
    return absl::NotFoundError(message);
  }
  return absl::FailedPreconditionError(message);
}

NvmlLibrary::~NvmlLibrary() {
  auto* shutdown = Find<NoArguments>("nvmlShutdown");
  if (initialised_ && shutdown != nullptr) shutdown();
  dlclose(handle_);
}

template <typename Function>
Function* NvmlLibrary::Find(const char* name) const {
  return reinterpret_cast<Function*>(dlsym(handle_, name));
}

int NvmlLibrary::Init() {
  auto* call = Find<NoArguments>("nvmlInit_v2");
  if (call == nullptr) call = Find<NoArguments>("nvmlInit");
  if (call == nullptr) return kNvmlFunctionNotFound;
  int code = call();
  initialised_ = code == kNvmlOk;
  return code;
}

int NvmlLibrary::DriverVersion(std::string& out) {
  auto* call = Find<TextCall>("nvmlSystemGetDriverVersion");
  if (call == nullptr) return kNvmlFunctionNotFound;
  char buffer[128] = "";
  int code = call(buffer, sizeof(buffer));
  if (code == kNvmlOk) out = Text(buffer, sizeof(buffer));
  return code;
}

int NvmlLibrary::Count(unsigned& out) {
  using Call = int(unsigned*);
  auto* call = Find<Call>("nvmlDeviceGetCount_v2");
  if (call == nullptr) call = Find<Call>("nvmlDeviceGetCount");
  return call == nullptr ? kNvmlFunctionNotFound : call(&out);
}

int NvmlLibrary::Device(unsigned index, NvmlDevice& out) {
  using Call = int(unsigned, NvmlDevice*);
  auto* call = Find<Call>("nvmlDeviceGetHandleByIndex_v2");
  if (call == nullptr) call = Find<Call>("nvmlDeviceGetHandleByIndex");
  return call == nullptr ? kNvmlFunctionNotFound : call(index, &out);
}

int NvmlLibrary::Uuid(NvmlDevice device, std::string& out) {
  auto* call = Find<DeviceTextCall>("nvmlDeviceGetUUID");
  if (call == nullptr) return kNvmlFunctionNotFound;
  char buffer[96] = "";
  int code = call(device, buffer, sizeof(buffer));
  if (code == kNvmlOk) out = Text(buffer, sizeof(buffer));
  return code;
}

int NvmlLibrary::Name(NvmlDevice device, std::string& out) {
  auto* call = Find<DeviceTextCall>("nvmlDeviceGetName");
  if (call == nullptr) return kNvmlFunctionNotFound;
  char buffer[96] = "";
  int code = call(device, buffer, sizeof(buffer));
  if (code == kNvmlOk) out = Text(buffer, sizeof(buffer));
  return code;
}

int NvmlLibrary::Pci(NvmlDevice device, NvmlPci& out) {
  using Call = int(NvmlDevice, PciInfo*);
  auto* call = Find<Call>("nvmlDeviceGetPciInfo_v3");
  if (call == nullptr) call = Find<Call>("nvmlDeviceGetPciInfo_v2");
  if (call == nullptr) call = Find<Call>("nvmlDeviceGetPciInfo");
  if (call == nullptr) return kNvmlFunctionNotFound;
  PciInfo info = {};
  int code = call(device, &info);
  if (code == kNvmlOk) out = {info.domain, info.bus, info.device};
  return code;
}

int NvmlLibrary::Memory(NvmlDevice device, NvmlMemory& out) {
  // The newer call counts what the driver keeps for itself apart, so that an idle GPU has nothing
  // in use. A library may have it while the driver does not support it.
  if (auto* call = Find<int(NvmlDevice, MemoryV2*)>("nvmlDeviceGetMemoryInfo_v2")) {
    MemoryV2 memory = {};
    memory.version = sizeof(memory) | (2u << 24);
    int code = call(device, &memory);
    if (code == kNvmlOk) out = {memory.total, memory.used};
    if (code == kNvmlOk || code == kNvmlGpuIsLost || code == kNvmlResetRequired) return code;
  }
  auto* call = Find<int(NvmlDevice, MemoryV1*)>("nvmlDeviceGetMemoryInfo");
  if (call == nullptr) return kNvmlFunctionNotFound;
  MemoryV1 memory = {};
  int code = call(device, &memory);
  if (code == kNvmlOk) out = {memory.total, memory.used};
  return code;
}

int NvmlLibrary::MigMode(NvmlDevice device, bool& on) {
  auto* call = Find<int(NvmlDevice, unsigned*, unsigned*)>("nvmlDeviceGetMigMode");
  if (call == nullptr) return kNvmlFunctionNotFound;
  unsigned current = 0, pending = 0;
  int code = call(device, &current, &pending);
  if (code == kNvmlOk) on = current == 1;
  return code;
}

int NvmlLibrary::ComputeMode(NvmlDevice device, int& mode) {
  auto* call = Find<int(NvmlDevice, int*)>("nvmlDeviceGetComputeMode");
  return call == nullptr ? kNvmlFunctionNotFound : call(device, &mode);
}

int NvmlLibrary::Utilisation(NvmlDevice device, unsigned& percent) {
  auto* call = Find<int(NvmlDevice, UtilisationRates*)>("nvmlDeviceGetUtilizationRates");
  if (call == nullptr) return kNvmlFunctionNotFound;
  UtilisationRates rates = {};
  int code = call(device, &rates);
  if (code == kNvmlOk) percent = rates.gpu;
  return code;
}

int NvmlLibrary::Temperature(NvmlDevice device, unsigned& celsius) {
  constexpr int kOfTheGpu = 0;
  auto* call = Find<int(NvmlDevice, int, unsigned*)>("nvmlDeviceGetTemperature");
  return call == nullptr ? kNvmlFunctionNotFound : call(device, kOfTheGpu, &celsius);
}

int NvmlLibrary::Power(NvmlDevice device, unsigned& milliwatts) {
  auto* call = Find<int(NvmlDevice, unsigned*)>("nvmlDeviceGetPowerUsage");
  return call == nullptr ? kNvmlFunctionNotFound : call(device, &milliwatts);
}

int NvmlLibrary::RegisterErrors(NvmlDevice device) {
  auto* create = Find<int(void**)>("nvmlEventSetCreate");
  auto* add = Find<int(NvmlDevice, unsigned long long, void*)>("nvmlDeviceRegisterEvents");
  if (create == nullptr || add == nullptr) return kNvmlFunctionNotFound;
  if (events_ == nullptr) {
    if (const int code = create(&events_); code != kNvmlOk) return code;
  }
  // A GPU without ECC refuses both kinds when asked for both.
  const int code = add(device, kEventXid | kEventDoubleBitEcc, events_);
  return code == kNvmlNotSupported ? add(device, kEventXid, events_) : code;
}

int NvmlLibrary::WaitForError(unsigned timeout_ms, NvmlEvent& out) {
  using Call = int(void*, EventData*, unsigned);
  auto* call = Find<Call>("nvmlEventSetWait_v2");
  if (call == nullptr) call = Find<Call>("nvmlEventSetWait");
  if (call == nullptr || events_ == nullptr) return kNvmlFunctionNotFound;
  EventData data = {};
  const int code = call(events_, &data, timeout_ms);
  if (code == kNvmlOk) out = {data.device, data.type == kEventXid, data.data};
  return code;
}

int NvmlLibrary::UncorrectedEccErrors(NvmlDevice device, unsigned long long& count) {
  constexpr int kUncorrected = 1;
  constexpr int kSinceDriverLoad = 0;
  auto* call = Find<int(NvmlDevice, int, int, unsigned long long*)>("nvmlDeviceGetTotalEccErrors");
  return call == nullptr ? kNvmlFunctionNotFound
                         : call(device, kUncorrected, kSinceDriverLoad, &count);
}

int NvmlLibrary::ComputeProcesses(NvmlDevice device, std::vector<NvmlProcess>& out) {
  return Processes("nvmlDeviceGetComputeRunningProcesses", device, out);
}

int NvmlLibrary::GraphicsProcesses(NvmlDevice device, std::vector<NvmlProcess>& out) {
  return Processes("nvmlDeviceGetGraphicsRunningProcesses", device, out);
}

int NvmlLibrary::Processes(const char* name, NvmlDevice device, std::vector<NvmlProcess>& out) {
  using CallV2 = int(NvmlDevice, unsigned*, ProcessV2*);
  auto* newer = Find<CallV2>(absl::StrCat(name, "_v3").c_str());
  if (newer == nullptr) newer = Find<CallV2>(absl::StrCat(name, "_v2").c_str());
  if (newer != nullptr) {
    int code = ReadProcesses(newer, device, out);
    if (code != kNvmlFunctionNotFound) return code;  // a driver older than the library
  }
  auto* call = Find<int(NvmlDevice, unsigned*, ProcessV1*)>(name);
  return call == nullptr ? kNvmlFunctionNotFound : ReadProcesses(call, device, out);
}

std::string NvmlLibrary::ErrorText(int code) {
  auto* call = Find<const char*(int)>("nvmlErrorString");
  const char* text = call == nullptr ? nullptr : call(code);
  return text == nullptr ? "" : Escape(text);
}

}  // namespace dtrain::inventory
