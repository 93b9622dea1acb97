// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "runtime/base/result.h"
#include "runtime/nccl/libraries.h"
#include "runtime/nccl/pinning.h"

namespace dtrain::runtime {

// The GPU of this process, with its primary context, which the program's CUDA runtime shares.
class Device {
 public:
  // The one that the calling thread uses already; else the one opened before; else the one that the
  // launcher gave, where this process sees it; else number `wanted` of those that it sees; else the
  // one whose number is the local rank.
  static Result<std::unique_ptr<Device>> Open(const CudaApi& cuda, int local_rank,
                                              std::optional<int> wanted,
                                              const Pinning& pinning = {});
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int ordinal() const { return ordinal_; }
  const std::string& name() const { return name_; }
  const std::string& uuid() const { return uuid_; }  // "GPU-5d1c…"; of the slice, if it is one
  const std::string& pci() const { return pci_; }

  // While it lives, the context is the thread's current one, and what the thread does spoils no
  // graph that is being captured.
  class Scope {
   public:
    explicit Scope(const Device& device);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const CudaApi& cuda_;
    bool pushed_ = false;
    int mode_ = abi::kCuCaptureRelaxed;  // of before
  };

 private:
  explicit Device(const CudaApi& cuda) : cuda_(cuda) {}
  MaybeError Choose(int local_rank, std::optional<int> wanted, const Pinning& pinning);

  const CudaApi& cuda_;
  int ordinal_ = 0;
  abi::CuDevice device_ = 0;
  abi::CuContext context_ = nullptr;
  std::string name_, uuid_, pci_;
};

}  // namespace dtrain::runtime
