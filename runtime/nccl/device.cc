// SPDX-License-Identifier: Apache-2.0
#include "runtime/nccl/device.h"

#include <atomic>

namespace dtrain::runtime {
namespace {

// Of the last one opened in this process: a job that another thread joins later is to have the
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
                                             std::optional<int> wanted, const Pinning& pinning) {
  const auto bad = [&](const std::string& what, int code) {
    return Error{DTRAIN_ERROR_DEVICE, what + " failed: " + cuda.Text(code)};
  };
  std::unique_ptr<Device> device(new Device(cuda));
  if (MaybeError error = device->Choose(local_rank, wanted, pinning)) return *error;
  const std::string gpu = "GPU " + std::to_string(device->ordinal_);
  int code = abi::kCudaSuccess;
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

MaybeError Device::Choose(int local_rank, std::optional<int> wanted, const Pinning& pinning) {
  abi::CuContext current = nullptr;
  if (cuda_.context_current(&current) == abi::kCudaSuccess && current != nullptr &&
      cuda_.context_device(&device_) == abi::kCudaSuccess) {
    ordinal_ = device_;
    return std::nullopt;
  }
  int count = 0;
  int code = cuda_.device_count(&count);
  if (code != abi::kCudaSuccess) {
    return Error{DTRAIN_ERROR_DEVICE, "counting the GPUs failed: " + cuda_.Text(code)};
  }
  if (count == 0) return Error{DTRAIN_ERROR_DEVICE, "no GPU is visible to this process"};
  ordinal_ = last_ordinal.load();
  const bool look = ordinal_ < 0 && pinning.stands && !pinning.own.empty();
  for (int i = 0; look && i < count; ++i) {
    abi::CuUuid uuid{};
    const bool known = cuda_.device_get(&device_, i) == abi::kCudaSuccess &&
                       cuda_.device_uuid(&uuid, device_) == abi::kCudaSuccess;
    if (known && SameGpu(UuidText(uuid), pinning.own)) ordinal_ = i;
  }
  int number = wanted.value_or(-1);
  if (pinning.renumbered && number >= count) number = -1;
  if (ordinal_ < 0 && number >= count) {
    return Error{DTRAIN_ERROR_ENVIRONMENT, "DTRAIN_DEVICE=" + std::to_string(number) +
                                               ", but this process sees " + std::to_string(count) +
                                               " GPUs, numbered from 0"};
  }
  if (ordinal_ < 0) ordinal_ = number >= 0 ? number : local_rank % count;
  code = cuda_.device_get(&device_, ordinal_);
  if (code == abi::kCudaSuccess) return std::nullopt;
  return Error{DTRAIN_ERROR_DEVICE,
               "opening GPU " + std::to_string(ordinal_) + " failed: " + cuda_.Text(code)};
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
