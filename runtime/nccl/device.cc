// SPDX-License-Identifier: Apache-2.0
#include "runtime/nccl/device.h"

#include <atomic>

namespace dtrain::runtime {
namespace {

// Of the last one opened in this process: a group made later, by another thread, is to have the
// same.
std::atomic<int> last_ordinal{-1};

// As nvidia-smi writes it.
std::string UuidText(const abi::CuUuid& uuid) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += kDigits[uuid.bytes[i] >> 4];
    text += kDigits[uuid.bytes[i] & 15];
  }
  return text;
}

}  // namespace

Result<std::unique_ptr<Device>> Device::Open(const CudaApi& cuda, int local_rank,
                                             std::optional<int> wanted) {
  const auto bad = [&](const std::string& what, int code) {
    return Error{DTRAIN_ERROR_DEVICE, what + " failed: " + cuda.Text(code)};
  };
  int count = 0;
  int code = cuda.device_count(&count);
  if (code != abi::kCudaSuccess) return bad("counting the GPUs", code);
  if (count == 0) return Error{DTRAIN_ERROR_DEVICE, "this process sees no GPU"};
  if (wanted && *wanted >= count) {
    return Error{DTRAIN_ERROR_ENVIRONMENT, "DTRAIN_DEVICE=" + std::to_string(*wanted) +
                                               ", but this process sees " + std::to_string(count) +
                                               " GPUs, numbered from 0"};
  }

  std::unique_ptr<Device> device(new Device(cuda));
  abi::CuContext current = nullptr;
  if (cuda.context_current(&current) == abi::kCudaSuccess && current != nullptr &&
      cuda.context_device(&device->device_) == abi::kCudaSuccess) {
    device->ordinal_ = device->device_;
  } else {
    const int last = last_ordinal.load();
    device->ordinal_ = last >= 0 ? last : wanted ? *wanted : local_rank % count;
    code = cuda.device_get(&device->device_, device->ordinal_);
    if (code != abi::kCudaSuccess)
      return bad("opening GPU " + std::to_string(device->ordinal_), code);
  }
  const std::string gpu = "GPU " + std::to_string(device->ordinal_);
  char text[256] = "";
  if (cuda.device_name(text, sizeof(text), device->device_) == abi::kCudaSuccess) {
    device->name_ = Printable(text);
  }
  abi::CuUuid uuid{};
  code = cuda.device_uuid(&uuid, device->device_);
  if (code != abi::kCudaSuccess) return bad("reading the UUID of " + gpu, code);
  device->uuid_ = UuidText(uuid);
  code = cuda.device_pci(text, sizeof(text), device->device_);
  if (code != abi::kCudaSuccess) return bad("reading the PCI address of " + gpu, code);
  device->pci_ = Printable(text);
  code = cuda.primary_retain(&device->context_, device->device_);
  if (code != abi::kCudaSuccess) return bad("making a context on " + gpu, code);
  last_ordinal.store(device->ordinal_);
  return device;
}

Device::~Device() {
  if (context_ != nullptr) cuda_.primary_release(device_);
}

Device::Scope::Scope(const Device& device) : cuda_(device.cuda_) {
  abi::CuContext current = nullptr;
  const bool there =
      cuda_.context_current(&current) == abi::kCudaSuccess && current == device.context_;
  pushed_ = !there && cuda_.context_push(device.context_) == abi::kCudaSuccess;
  if (cuda_.exchange_capture_mode != nullptr) cuda_.exchange_capture_mode(&mode_);
}

Device::Scope::~Scope() {
  if (cuda_.exchange_capture_mode != nullptr) cuda_.exchange_capture_mode(&mode_);
  abi::CuContext popped = nullptr;
  if (pushed_) cuda_.context_pop(&popped);
}

}  // namespace dtrain::runtime
