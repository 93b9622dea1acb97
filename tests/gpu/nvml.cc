// SPDX-License-Identifier: Apache-2.0
// NVML beside a running job: what the agent asks for, timed.
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>

#include "tests/gpu/checks.h"

namespace dtrain::gpu_check {
namespace {

using std::chrono::steady_clock;

constexpr double kMostSeconds = 0.05;
constexpr unsigned long long kXidErrors = 8;  // nvmlEventTypeXidCriticalError
constexpr int kNotSupported = 3;

struct Memory {
  unsigned long long total, free, used;
};
struct Utilisation {
  unsigned gpu, memory;
};

class Nvml {
 public:
  Nvml(Result& result, void* library) : result_(result), library_(library) {}

  // Calls `name` some times, and notes the longest; false when it fails or is not there.
  template <typename... A>
  bool Timed(const char* name, A... arguments) {
    const auto function = reinterpret_cast<int (*)(A...)>(dlsym(library_, name));
    if (function == nullptr) {
      result_.CouldNot(std::string("NVML has no ") + name);
      return false;
    }
    const auto start = steady_clock::now();
    const int error = function(arguments...);
    const double seconds = SecondsSince(start);
    worst_ = std::max(worst_, seconds);
    if (seconds > kMostSeconds && std::string(name) != "nvmlInit_v2") {
      result_.Miss(std::string(name) + " took " + std::to_string(seconds * 1e3) + " ms");
    }
    if (error == kNotSupported) {
      result_.CouldNot(std::string(name) + " is not supported by this GPU");
    } else if (error != 0) {
      result_.Miss(std::string(name) + " failed with NVML error " + std::to_string(error));
    }
    return error == 0;
  }
  double worst() const { return worst_; }

 private:
  Result& result_;
  void* library_;
  double worst_ = 0;
};

}  // namespace

int CheckNvml(const Arguments& arguments) {
  Result result("nvml");
  const char* file = std::getenv("DTRAIN_NVML_LIBRARY");
  void* library = dlopen(file == nullptr ? "libnvidia-ml.so.1" : file, RTLD_NOW);
  if (library == nullptr) {
    result.CouldNot(std::string("no NVML: ") + dlerror());
    return result.Print();
  }
  Nvml nvml(result, library);
  if (!nvml.Timed("nvmlInit_v2")) return result.Print();
  for (int round = 0; round < arguments.Number("--rounds", 20); ++round) {
    unsigned devices = 0;
    if (!nvml.Timed("nvmlDeviceGetCount_v2", &devices)) break;
    for (unsigned i = 0; i < devices; ++i) {
      void* device = nullptr;
      char uuid[96] = {};
      Memory memory = {};
      Utilisation utilisation = {};
      unsigned temperature = 0;
      if (!nvml.Timed("nvmlDeviceGetHandleByIndex_v2", i, &device)) break;
      nvml.Timed("nvmlDeviceGetUUID", device, uuid, 96u);
      nvml.Timed("nvmlDeviceGetMemoryInfo", device, &memory);
      nvml.Timed("nvmlDeviceGetUtilizationRates", device, &utilisation);
      nvml.Timed("nvmlDeviceGetTemperature", device, 0, &temperature);
      if (round > 0) continue;
      result.Text("uuid_" + std::to_string(i), uuid);
      result.Number("used_bytes_" + std::to_string(i), static_cast<double>(memory.used));
      void* events = nullptr;
      if (nvml.Timed("nvmlEventSetCreate", &events)) {
        nvml.Timed("nvmlDeviceRegisterEvents", device, kXidErrors, events);
        nvml.Timed("nvmlEventSetFree", events);
      }
    }
  }
  nvml.Timed("nvmlShutdown");
  result.Number("worst_ms", nvml.worst() * 1e3);
  return result.Print();
}

}  // namespace dtrain::gpu_check
