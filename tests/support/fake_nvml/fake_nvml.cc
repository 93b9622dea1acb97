// SPDX-License-Identifier: Apache-2.0
// A stand-in for NVIDIA's management library, under its real file name, which says what the text
// file named by the environment variable FAKE_NVML says. README.md beside this has the grammar.
// With FAKE_NVML_OLD it has only the functions of a driver from before the versioned names.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <string>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct Process {
  unsigned pid = 0;
  unsigned long long memory = 0;
  bool graphics = false;
};

using Codes = std::map<std::string, int>;

struct Gpu {
  std::string uuid, pci, name = "NVIDIA Fake";
  unsigned long long memory = 80ull << 30, used = 0;
  int mig = -1;  // -1: the GPU knows no MIG
  int mode = 0;  // compute mode: 0 default, 2 prohibited, 3 exclusive process
  // -1: it does not tell
  int utilisation = -1, temperature = -1, power = -1;
  long long ecc = -1;
  bool lost = false;
  std::vector<Process> processes;
  Codes errors;
};

struct Machine {
  std::string driver = "535.104.05";
  std::vector<Gpu> gpus;
  Codes errors;
  Codes slow;         // milliseconds
  std::string reads;  // a file that gets a byte for each look
  // What happens while it is used: how much of the file was read, and who hears of it.
  std::string events;
  long events_read = 0;
  std::string registered;  // a file that gets a byte for each GPU whose events are wanted
  bool hangs = false;
};

int users = 0;
Machine machine;

enum {
  kOk = 0,
  kUninitialized = 1,
  kInvalid = 2,
  kNotSupported = 3,
  kTooSmall = 7,
  kNoDriver = 9,
  kTimeout = 10,
  kLost = 15
};

void SetGpuField(Gpu& gpu, const std::string& key, std::string value) {
  for (char& c : value) {
    if (c == '_' && key == "name") c = ' ';
  }
  if (key == "uuid") gpu.uuid = value;
  if (key == "pci") gpu.pci = value;
  if (key == "name") gpu.name = value;
  if (key == "memory") gpu.memory = strtoull(value.c_str(), nullptr, 10);
  if (key == "used") gpu.used = strtoull(value.c_str(), nullptr, 10);
  if (key == "mig") gpu.mig = atoi(value.c_str());
  if (key == "mode") gpu.mode = atoi(value.c_str());
  if (key == "utilisation") gpu.utilisation = atoi(value.c_str());
  if (key == "temperature") gpu.temperature = atoi(value.c_str());
  if (key == "ecc") gpu.ecc = atoll(value.c_str());
  if (key == "power") gpu.power = atoi(value.c_str());
}

std::vector<std::string> Words(const char* line) {
  std::vector<std::string> words;
  for (const char* p = line; *p != '\0' && *p != '#';) {
    size_t n = strcspn(p, " \t\r\n#");
    if (n > 0) words.emplace_back(p, n);
    p += n;
    p += strspn(p, " \t\r\n");
  }
  return words;
}

void ReadLine(const char* line, Machine& out) {
  std::vector<std::string> words = Words(line);
  if (words.empty()) return;
  if (words[0] == "driver" && words.size() == 2) out.driver = words[1];
  if (words[0] == "error" && words.size() == 3) out.errors[words[1]] = atoi(words[2].c_str());
  if (words[0] == "slow" && words.size() == 3) out.slow[words[1]] = atoi(words[2].c_str());
  if (words[0] == "reads" && words.size() == 2) out.reads = words[1];
  if (words[0] == "events" && words.size() == 2) out.events = words[1];
  if (words[0] == "registered" && words.size() == 2) out.registered = words[1];
  if (words[0] == "gpu") {
    out.gpus.emplace_back();
    for (size_t i = 1; i < words.size(); ++i) {
      size_t equals = words[i].find('=');
      if (equals == std::string::npos) continue;
      SetGpuField(out.gpus.back(), words[i].substr(0, equals), words[i].substr(equals + 1));
    }
  }
  if (out.gpus.empty()) return;
  if (words[0] == "gpu_error" && words.size() == 3) {
    out.gpus.back().errors[words[1]] = atoi(words[2].c_str());
  }
  if ((words[0] == "process" || words[0] == "graphics") && words.size() == 3) {
    out.gpus.back().processes.push_back({static_cast<unsigned>(atoi(words[1].c_str())),
                                         strtoull(words[2].c_str(), nullptr, 10),
                                         words[0] == "graphics"});
  }
}

// nvmlEventData_t
struct EventData {
  void* device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};

// The next line of the events that is whole. What it tells stays so; `out`: what was told.
bool NextEvent(Machine& machine, EventData& out) {
  FILE* file = machine.events.empty() ? nullptr : fopen(machine.events.c_str(), "re");
  if (file == nullptr) return false;
  bool told = false;
  char line[256];
  fseek(file, machine.events_read, SEEK_SET);
  while (!told && fgets(line, sizeof(line), file) != nullptr && strchr(line, '\n') != nullptr) {
    machine.events_read = ftell(file);
    std::vector<std::string> words = Words(line);
    if (words.empty()) continue;
    machine.hangs = machine.hangs || words[0] == "hang";
    for (Gpu& gpu : machine.gpus) {
      if (gpu.uuid != words[0] || words.size() < 2) continue;
      if (words[1] == "lost") gpu.lost = true;
      if (words[1] == "ecc" && words.size() == 3) gpu.ecc = atoll(words[2].c_str());
      if (words[1] == "lost" || words.size() != 3) continue;
      out = {&gpu, words[1] == "xid" ? 8ull : 2ull, strtoull(words[2].c_str(), nullptr, 10), ~0u,
             ~0u};
      told = true;
    }
  }
  fclose(file);
  return told;
}

void Append(const std::string& path) {
  FILE* file = path.empty() ? nullptr : fopen(path.c_str(), "ae");
  if (file == nullptr) return;
  fputc('.', file);
  fclose(file);
}

void Sleep(int milliseconds) {
  timespec t{milliseconds / 1000, milliseconds % 1000 * 1'000'000l};
  nanosleep(&t, nullptr);
}

bool Load(Machine& out) {
  const char* path = getenv("FAKE_NVML");
  FILE* file = path == nullptr ? nullptr : fopen(path, "re");
  if (file == nullptr) return false;
  char line[4096];
  while (fgets(line, sizeof(line), file) != nullptr) ReadLine(line, out);
  fclose(file);
  for (EventData past = {}; NextEvent(out, past);) {
  }
  return true;
}

// The code that the file asks `function` to return, for all GPUs or for one.
int Asked(const char* function, const Gpu* gpu = nullptr) {
  auto slow = machine.slow.find(function);
  if (slow != machine.slow.end()) Sleep(slow->second);
  while (machine.hangs) Sleep(1000);
  if (gpu != nullptr) {
    if (gpu->lost) return kLost;
    auto it = gpu->errors.find(function);
    if (it != gpu->errors.end()) return it->second;
  }
  auto it = machine.errors.find(function);
  return it == machine.errors.end() ? kOk : it->second;
}

int Init(const char* function) {
  if (users == 0) {
    machine = Machine();
    if (!Load(machine)) return kNoDriver;
  }
  int code = Asked(function);
  if (code == kOk) ++users;
  return code;
}

int Begin(const char* function, void* device) {
  return users == 0 ? int{kUninitialized} : Asked(function, static_cast<Gpu*>(device));
}

int CopyText(const std::string& text, char* buffer, unsigned size) {
  if (size < text.size() + 1) return kTooSmall;
  memcpy(buffer, text.c_str(), text.size() + 1);
  return kOk;
}

int DeviceCount(const char* function, unsigned* count) {
  int code = Begin(function, nullptr);
  if (code == kOk) *count = static_cast<unsigned>(machine.gpus.size());
  return code;
}

int DeviceHandle(const char* function, unsigned index, void** device) {
  if (users == 0) return kUninitialized;
  if (index >= machine.gpus.size()) return kInvalid;
  int code = Asked(function, &machine.gpus[index]);
  if (code == kOk) *device = &machine.gpus[index];
  return code;
}

// The layouts are those of nvml.h; "Legacy" bus ids have a domain of four digits.
template <size_t kTail>
struct PciInfo {
  char bus_id_legacy[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char tail[kTail];
};

template <size_t kTail>
int DevicePci(const char* function, void* device, PciInfo<kTail>* info) {
  int code = Begin(function, device);
  if (code != kOk) return code;
  memset(info, 0, sizeof(*info));
  const std::string& pci = static_cast<Gpu*>(device)->pci;
  if (sscanf(pci.c_str(), "%x:%x:%x", &info->domain, &info->bus, &info->device) != 3) {
    return kInvalid;
  }
  snprintf(info->bus_id_legacy, sizeof(info->bus_id_legacy), "%04X:%02X:%02X.0",
           info->domain & 0xffff, info->bus & 0xff, info->device & 0xff);
  return kOk;
}

struct ProcessV1 {
  unsigned pid;
  unsigned long long memory;
};
struct ProcessV2 {
  unsigned pid;
  unsigned long long memory;
  unsigned gpu_instance, compute_instance;
};

template <typename Entry>
int Processes(const char* function, void* device, unsigned* count, Entry* out,
              bool graphics = false) {
  int code = Begin(function, device);
  if (code != kOk) return code;
  std::vector<Process> processes;
  for (const Process& process : static_cast<Gpu*>(device)->processes) {
    if (process.graphics == graphics) processes.push_back(process);
  }
  unsigned room = *count;
  *count = static_cast<unsigned>(processes.size());
  if (room < processes.size()) return kTooSmall;
  for (size_t i = 0; i < processes.size(); ++i) {
    out[i] = Entry();
    out[i].pid = processes[i].pid;
    out[i].memory = processes[i].memory;
  }
  return kOk;
}

}  // namespace

EXPORT int nvmlInit() { return Init("nvmlInit"); }

EXPORT int nvmlShutdown() {
  if (users == 0) return kUninitialized;
  --users;
  return kOk;
}

EXPORT const char* nvmlErrorString(int code) {
  switch (code) {
    case 0:
      return "Success";
    case 9:
      return "Driver Not Loaded";
    case 15:
      return "GPU is lost";
    case 18:
      return "Driver/library version mismatch";
    default:
      return "Unknown Error";
  }
}

EXPORT int nvmlSystemGetDriverVersion(char* buffer, unsigned size) {
  Append(machine.reads);
  int code = Begin("nvmlSystemGetDriverVersion", nullptr);
  return code != kOk ? code : CopyText(machine.driver, buffer, size);
}

EXPORT int nvmlDeviceGetCount(unsigned* count) { return DeviceCount("nvmlDeviceGetCount", count); }

EXPORT int nvmlDeviceGetHandleByIndex(unsigned index, void** device) {
  return DeviceHandle("nvmlDeviceGetHandleByIndex", index, device);
}

EXPORT int nvmlDeviceGetUUID(void* device, char* buffer, unsigned size) {
  int code = Begin("nvmlDeviceGetUUID", device);
  return code != kOk ? code : CopyText(static_cast<Gpu*>(device)->uuid, buffer, size);
}

EXPORT int nvmlDeviceGetName(void* device, char* buffer, unsigned size) {
  int code = Begin("nvmlDeviceGetName", device);
  return code != kOk ? code : CopyText(static_cast<Gpu*>(device)->name, buffer, size);
}

EXPORT int nvmlDeviceGetPciInfo(void* device, PciInfo<16>* info) {
  return DevicePci("nvmlDeviceGetPciInfo", device, info);
}

struct MemoryV1 {
  unsigned long long total, free, used;
};

EXPORT int nvmlDeviceGetMemoryInfo(void* device, MemoryV1* out) {
  int code = Begin("nvmlDeviceGetMemoryInfo", device);
  if (code != kOk) return code;
  const Gpu& gpu = *static_cast<Gpu*>(device);
  *out = {gpu.memory, gpu.memory - gpu.used, gpu.used};
  return kOk;
}

EXPORT int nvmlDeviceGetComputeMode(void* device, int* mode) {
  int code = Begin("nvmlDeviceGetComputeMode", device);
  if (code == kOk) *mode = static_cast<Gpu*>(device)->mode;
  return code;
}

struct Utilisation {
  unsigned gpu, memory;
};

EXPORT int nvmlDeviceGetUtilizationRates(void* device, Utilisation* out) {
  int code = Begin("nvmlDeviceGetUtilizationRates", device);
  if (code != kOk) return code;
  const int percent = static_cast<Gpu*>(device)->utilisation;
  if (percent < 0) return kNotSupported;
  *out = {static_cast<unsigned>(percent), 0};
  return kOk;
}

EXPORT int nvmlDeviceGetTemperature(void* device, int sensor, unsigned* out) {
  int code = Begin("nvmlDeviceGetTemperature", device);
  if (code != kOk) return code;
  const int celsius = static_cast<Gpu*>(device)->temperature;
  if (sensor != 0 || celsius < 0) return kNotSupported;
  *out = static_cast<unsigned>(celsius);
  return kOk;
}

EXPORT int nvmlDeviceGetTotalEccErrors(void* device, int type, int counter,
                                       unsigned long long* out) {
  int code = Begin("nvmlDeviceGetTotalEccErrors", device);
  if (code != kOk) return code;
  const long long errors = static_cast<Gpu*>(device)->ecc;
  if (type != 1 || counter != 0 || errors < 0) return kNotSupported;
  *out = static_cast<unsigned long long>(errors);
  return kOk;
}

EXPORT int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
  int code = Begin("nvmlDeviceGetPowerUsage", device);
  if (code != kOk) return code;
  const int power = static_cast<Gpu*>(device)->power;
  if (power < 0) return kNotSupported;
  *milliwatts = static_cast<unsigned>(power);
  return kOk;
}

EXPORT int nvmlEventSetCreate(void** set) {
  *set = &machine;
  return Begin("nvmlEventSetCreate", nullptr);
}

EXPORT int nvmlDeviceRegisterEvents(void* device, unsigned long long types, void* set) {
  int code = Begin("nvmlDeviceRegisterEvents", device);
  if (code != kOk) return code;
  if (set != &machine || types == 0) return kInvalid;
  if ((types & 2) != 0 && static_cast<Gpu*>(device)->ecc < 0) return kNotSupported;
  Append(machine.registered);
  return kOk;
}

EXPORT int nvmlEventSetWait(void* set, EventData* out, unsigned timeout_ms) {
  if (set != &machine) return kInvalid;
  for (unsigned waited = 0;; waited += 20) {
    int code = Begin("nvmlEventSetWait", nullptr);
    if (code != kOk) return code;
    if (NextEvent(machine, *out)) return kOk;
    for (const Gpu& gpu : machine.gpus) {
      if (gpu.lost) return kLost;
    }
    if (waited >= timeout_ms) return kTimeout;
    Sleep(20);
  }
}

EXPORT int nvmlDeviceGetComputeRunningProcesses(void* device, unsigned* count, ProcessV1* out) {
  return Processes("nvmlDeviceGetComputeRunningProcesses", device, count, out);
}

#ifndef FAKE_NVML_OLD

EXPORT int nvmlEventSetWait_v2(void* set, EventData* out, unsigned timeout_ms) {
  return nvmlEventSetWait(set, out, timeout_ms);
}

EXPORT int nvmlInit_v2() { return Init("nvmlInit_v2"); }

EXPORT int nvmlDeviceGetCount_v2(unsigned* count) {
  return DeviceCount("nvmlDeviceGetCount_v2", count);
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  return DeviceHandle("nvmlDeviceGetHandleByIndex_v2", index, device);
}

EXPORT int nvmlDeviceGetPciInfo_v2(void* device, PciInfo<16>* info) {
  return DevicePci("nvmlDeviceGetPciInfo_v2", device, info);
}

EXPORT int nvmlDeviceGetPciInfo_v3(void* device, PciInfo<32>* info) {
  int code = DevicePci("nvmlDeviceGetPciInfo_v3", device, info);
  if (code == kOk) {
    snprintf(info->tail, sizeof(info->tail), "%08X:%02X:%02X.0", info->domain, info->bus & 0xff,
             info->device & 0xff);
  }
  return code;
}

struct MemoryV2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};

EXPORT int nvmlDeviceGetMemoryInfo_v2(void* device, MemoryV2* out) {
  int code = Begin("nvmlDeviceGetMemoryInfo_v2", device);
  if (code != kOk) return code;
  if (out->version != (sizeof(MemoryV2) | 2u << 24)) return 25;  // argument version mismatch
  const Gpu& gpu = *static_cast<Gpu*>(device);
  *out = {out->version, gpu.memory, 0, gpu.memory - gpu.used, gpu.used};
  return kOk;
}

EXPORT int nvmlDeviceGetMigMode(void* device, unsigned* current, unsigned* pending) {
  int code = Begin("nvmlDeviceGetMigMode", device);
  if (code != kOk) return code;
  int mig = static_cast<Gpu*>(device)->mig;
  if (mig < 0) return kNotSupported;
  *current = *pending = static_cast<unsigned>(mig);
  return kOk;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v2(void* device, unsigned* count, ProcessV2* out) {
  return Processes("nvmlDeviceGetComputeRunningProcesses_v2", device, count, out);
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, ProcessV2* out) {
  return Processes("nvmlDeviceGetComputeRunningProcesses_v3", device, count, out);
}

EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(void* device, unsigned* count, ProcessV2* out) {
  return Processes("nvmlDeviceGetGraphicsRunningProcesses_v3", device, count, out, true);
}

#endif
