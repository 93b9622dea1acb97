// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "agent/inventory/roots.h"
#include "dtrain/v1/node.pb.h"

namespace dtrain::inventory {

struct GpuOptions {
  // NVIDIA's management library. The environment variable DTRAIN_NVML_LIBRARY names another file.
  std::string library = "libnvidia-ml.so.1";
  // CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER as this process inherited them.
  std::optional<std::string> visible_devices;
  std::string device_order;
  Roots roots;
};
GpuOptions GpuOptionsFromEnvironment();

struct GpuReport {
  std::vector<v1::Gpu> gpus;  // in PCI order, or as CUDA_VISIBLE_DEVICES names them
  std::string driver;         // version; empty: no driver
  std::string error;          // why none is listed although a driver is there
  std::vector<std::string> warnings;
};

// The GPUs this process may use. No library or no driver: none, and no error. A GPU that cannot be
// used is listed with its `fault`. Blocks, for seconds when the driver has to wake the GPUs, and
// for ever in one that hangs: for a process of its own (GpuLook).
GpuReport ReadGpus(const GpuOptions& options);
// The same where the library cannot be opened, which no driver can hold up. Null: it can.
std::optional<GpuReport> ReadWithoutLibrary(const GpuOptions& options);

// Why a GPU cannot be used, according to the code that an NVML call about it returned. Empty if
// that code gives no reason.
std::string FaultText(int code);

// Moves the report into the node's inventory.
void SetGpus(GpuReport report, v1::Inventory& inventory);

}  // namespace dtrain::inventory
