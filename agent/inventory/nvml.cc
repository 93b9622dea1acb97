// SPDX-License-Identifier: Apache-2.0
#include "agent/inventory/nvml.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "agent/inventory/nvml_library.h"
#include "agent/inventory/visible_devices.h"
#include "common/base/cpulist.h"
#include "common/base/text.h"
#include "common/os/fd.h"

namespace dtrain::inventory {
namespace {

constexpr unsigned kMostGpus = 1024;  // what a broken library may make us loop over

// A small file's text without the newline at its end; empty when it cannot be read.
std::string FileText(const std::string& path) {
  absl::StatusOr<std::string> text = os::ReadSmallFile(path, 1 << 16);
  return text.ok() ? Escape(absl::StripAsciiWhitespace(*text)) : "";
}

// What the kernel says, which also works when NVML does not.
std::string KernelDriver(const Roots& roots) {
  return FileText(absl::StrCat(roots.sysfs, "/module/nvidia/version"));
}

std::string Failure(NvmlLibrary& nvml, absl::string_view call, int code) {
  std::string text = nvml.ErrorText(code);
  return absl::StrCat("NVML's ", call, " failed with code ", code, text.empty() ? "" : " (", text,
                      text.empty() ? "" : ")");
}

// Why NVML cannot start although a driver is there.
std::string InitError(NvmlLibrary& nvml, int code, const std::string& driver) {
  switch (code) {
    case kNvmlLibraryMismatch:
      return absl::StrCat("NVIDIA's driver was updated but the old one", driver.empty() ? "" : " (",
                          driver, driver.empty() ? "" : ")",
                          " still runs in the kernel, so no program can use the GPUs: reboot the "
                          "node, or reload the nvidia kernel modules");
    case kNvmlNoPermission:
      return "this user or container has no permission to use the GPUs: give it access to "
             "/dev/nvidia* (and to them in its device cgroup)";
    case kNvmlGpuIsLost:
      return "a GPU fell off the bus: reboot the node, and see the kernel log for lines with NVRM";
    default:
      return absl::StrCat(Failure(nvml, "nvmlInit", code),
                          "; see the kernel log for lines with NVRM, and try nvidia-smi");
  }
}

struct Device {
  v1::Gpu gpu;
  // Unknown ones come last: they are lost and have no say in the order of the others.
  std::tuple<bool, unsigned, unsigned, unsigned> order{true, 0, 0, 0};
};

void NoteFault(int code, v1::Gpu& gpu) {
  if (gpu.fault().empty()) gpu.set_fault(FaultText(code));
}

void ReadLocality(const Roots& roots, v1::Gpu& gpu) {
  const std::string folder = absl::StrCat(roots.sysfs, "/bus/pci/devices/", gpu.pci_address());
  int node = -1;
  if (absl::SimpleAtoi(FileText(absl::StrCat(folder, "/numa_node")), &node) && node >= 0) {
    gpu.set_numa_node(node);
  }
  absl::StatusOr<std::vector<int>> cpus =
      ParseCpuList(FileText(absl::StrCat(folder, "/local_cpulist")));
  if (cpus.ok()) gpu.set_local_cpulist(FormatCpuList(*cpus));
}

void AddProcesses(const std::vector<NvmlProcess>& processes, bool graphics, const Roots& roots,
                  v1::Gpu& gpu) {
  for (const NvmlProcess& process : processes) {
    const bool known = std::any_of(gpu.processes().begin(), gpu.processes().end(),
                                   [&](const auto& other) { return other.pid() == process.pid; });
    if (known) continue;  // it computes and draws
    v1::GpuProcess* out = gpu.add_processes();
    out->set_pid(process.pid);
    // In a container NVML tells the host's pids, which mean nothing or something else here.
    out->set_name(FileText(absl::StrCat(roots.procfs, "/", process.pid, "/comm")));
    out->set_memory_bytes(process.memory);
    out->set_graphics(graphics);
  }
}

void ReadOccupancy(NvmlLibrary& nvml, NvmlDevice handle, const Roots& roots, v1::Gpu& gpu) {
  NvmlMemory memory;
  NoteFault(nvml.Memory(handle, memory), gpu);
  gpu.set_memory_total_bytes(memory.total);
  gpu.set_memory_used_bytes(memory.used);
  std::vector<NvmlProcess> computing, drawing;
  NoteFault(nvml.ComputeProcesses(handle, computing), gpu);
  AddProcesses(computing, false, roots, gpu);
  NoteFault(nvml.GraphicsProcesses(handle, drawing), gpu);
  AddProcesses(drawing, true, roots, gpu);
}

// What many GPUs, above all those of desks, do not tell: then nothing is said.
void ReadHealth(NvmlLibrary& nvml, NvmlDevice handle, v1::Gpu& gpu) {
  unsigned percent = 0, celsius = 0;
  unsigned long long errors = 0;
  int code = nvml.Utilisation(handle, percent);
  NoteFault(code, gpu);
  if (code == kNvmlOk) gpu.set_utilisation_percent(percent);
  code = nvml.Temperature(handle, celsius);
  NoteFault(code, gpu);
  if (code == kNvmlOk) gpu.set_temperature_celsius(celsius);
  code = nvml.UncorrectedEccErrors(handle, errors);
  NoteFault(code, gpu);
  if (code == kNvmlOk) gpu.set_uncorrected_ecc_errors(errors);
}

Device ReadDevice(NvmlLibrary& nvml, NvmlDevice handle, const Roots& roots) {
  Device device;
  v1::Gpu& gpu = device.gpu;
  gpu.set_numa_node(-1);
  NvmlPci pci;
  int code = nvml.Pci(handle, pci);
  NoteFault(code, gpu);
  if (code == kNvmlOk) {
    // NVML knows no function numbers; a GPU's is 0.
    gpu.set_pci_address(absl::StrFormat("%04x:%02x:%02x.0", pci.domain, pci.bus, pci.device));
    device.order = {false, pci.domain, pci.bus, pci.device};
    ReadLocality(roots, gpu);
  }
  std::string name, uuid;
  NoteFault(nvml.Name(handle, name), gpu);
  gpu.set_name(name);
  code = nvml.Uuid(handle, uuid);
  NoteFault(code, gpu);
  gpu.set_uuid(uuid);
  if (code != kNvmlOk && gpu.fault().empty()) {
    gpu.set_fault(Failure(nvml, "nvmlDeviceGetUUID", code));
  }
  bool mig = false;
  NoteFault(nvml.MigMode(handle, mig), gpu);
  if (mig && gpu.fault().empty()) {
    gpu.set_fault("MIG mode is on, and dtrain uses whole GPUs only (nvidia-smi -mig 0 ends it)");
  }
  int mode = 0;
  NoteFault(nvml.ComputeMode(handle, mode), gpu);
  gpu.set_exclusive_process(mode == kNvmlComputeExclusiveProcess);
  if (mode == kNvmlComputeProhibited && gpu.fault().empty()) {
    gpu.set_fault("its compute mode is PROHIBITED (nvidia-smi -c DEFAULT ends it)");
  }
  ReadOccupancy(nvml, handle, roots, gpu);
  ReadHealth(nvml, handle, gpu);
  return device;
}

std::vector<Device> ReadDevices(NvmlLibrary& nvml, const Roots& roots, GpuReport& report) {
  std::vector<Device> devices;
  unsigned count = 0;
  int code = nvml.Count(count);
  if (code != kNvmlOk) {
    report.error = Failure(nvml, "nvmlDeviceGetCount", code);
    return devices;
  }
  for (unsigned index = 0; index < std::min(count, kMostGpus); ++index) {
    NvmlDevice handle = nullptr;
    code = nvml.Device(index, handle);
    if (code == kNvmlNoPermission) continue;  // not given to this container
    Device device;
    if (code == kNvmlOk) {
      device = ReadDevice(nvml, handle, roots);
    } else {
      device.gpu.set_numa_node(-1);
      NoteFault(code, device.gpu);
      if (device.gpu.fault().empty()) {
        device.gpu.set_fault(Failure(nvml, "nvmlDeviceGetHandleByIndex", code));
      }
    }
    device.gpu.set_index(index);
    devices.push_back(std::move(device));
  }
  std::stable_sort(devices.begin(), devices.end(),
                   [](const Device& a, const Device& b) { return a.order < b.order; });
  return devices;
}

void KeepVisible(const GpuOptions& options, GpuReport& report) {
  if (!options.visible_devices) return;
  VisibleDevices visible =
      PickVisibleDevices(report.gpus, *options.visible_devices, options.device_order);
  std::vector<v1::Gpu> kept;
  for (size_t i : visible.picked) kept.push_back(std::move(report.gpus[i]));
  report.gpus = std::move(kept);
  if (visible.warning.empty()) return;
  // A list that names no GPU by mistake must not look like a node without GPUs: that one would run
  // a rank on each core.
  if (report.gpus.empty()) {
    report.error = std::move(visible.warning);
  } else {
    report.warnings.push_back(std::move(visible.warning));
  }
}

}  // namespace

GpuOptions GpuOptionsFromEnvironment() {
  GpuOptions options;
  if (const char* value = getenv("DTRAIN_NVML_LIBRARY")) {
    if (*value != '\0') options.library = value;
  }
  if (const char* value = getenv("CUDA_VISIBLE_DEVICES")) options.visible_devices = value;
  if (const char* value = getenv("CUDA_DEVICE_ORDER")) options.device_order = value;
  return options;
}

std::optional<GpuReport> ReadWithoutLibrary(const GpuOptions& options) {
  const absl::Status opened = NvmlLibrary::Open(options.library).status();
  if (opened.ok()) return std::nullopt;
  GpuReport report;
  report.driver = KernelDriver(options.roots);
  std::string why = absl::StrCat("GPUs cannot be used: ", opened.message());
  if (!absl::IsNotFound(opened)) {
    report.error = std::move(why);
  } else if (!report.driver.empty()) {
    // Usual in a container that was given no GPUs, and all there is to see of a broken driver.
    report.warnings.push_back(absl::StrCat(why, ", though the kernel has NVIDIA's driver ",
                                           report.driver,
                                           "; a container needs to be started with GPUs"));
  }
  return report;
}

GpuReport ReadGpus(const GpuOptions& options) {
  absl::StatusOr<std::unique_ptr<NvmlLibrary>> opened = NvmlLibrary::Open(options.library);
  if (!opened.ok()) return ReadWithoutLibrary(options).value_or(GpuReport());
  GpuReport report;
  const std::string kernel_driver = KernelDriver(options.roots);
  NvmlLibrary& nvml = **opened;
  int code = nvml.Init();
  if (code != kNvmlOk) {
    report.driver = code == kNvmlDriverNotLoaded ? "" : kernel_driver;
    // A library without a driver, or too old a one for us: a machine without GPUs as far as
    // dtrain is concerned.
    bool none = code == kNvmlDriverNotLoaded || code == kNvmlLibraryNotFound ||
                code == kNvmlFunctionNotFound;
    if (!none) report.error = InitError(nvml, code, kernel_driver);
    return report;
  }
  if (nvml.DriverVersion(report.driver) != kNvmlOk) {
    report.driver = kernel_driver.empty() ? "unknown" : kernel_driver;
  }
  for (Device& device : ReadDevices(nvml, options.roots, report)) {
    report.gpus.push_back(std::move(device.gpu));
  }
  KeepVisible(options, report);
  return report;
}

std::string FaultText(int code) {
  if (code == kNvmlGpuIsLost) {
    return "lost: it fell off the bus (reboot the node, and see the kernel log for NVRM lines)";
  }
  if (code == kNvmlResetRequired) {
    return "it needs a reset before it can be used again (nvidia-smi --gpu-reset, or a reboot)";
  }
  return "";
}

void SetGpus(GpuReport report, v1::Inventory& inventory) {
  inventory.clear_gpus();
  for (v1::Gpu& gpu : report.gpus) *inventory.add_gpus() = std::move(gpu);
  inventory.set_gpu_driver(std::move(report.driver));
  inventory.set_gpu_error(std::move(report.error));
  for (std::string& warning : report.warnings) inventory.add_warnings(std::move(warning));
}

}  // namespace dtrain::inventory
