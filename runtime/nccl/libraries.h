// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "runtime/base/result.h"
#include "runtime/nccl/abi.h"

namespace dtrain::runtime {

// libcuda.so.1 (or DTRAIN_CUDA_LIBRARY): what every machine with a GPU driver has.
struct CudaApi {
  std::string file;

  int (*init)(unsigned) = nullptr;
  int (*error_string)(int, const char**) = nullptr;
  int (*driver_version)(int*) = nullptr;
  int (*device_count)(int*) = nullptr;
  int (*device_get)(abi::CuDevice*, int) = nullptr;
  int (*device_name)(char*, int, abi::CuDevice) = nullptr;
  int (*device_uuid)(abi::CuUuid*, abi::CuDevice) = nullptr;  // of the slice, if it is one
  int (*device_pci)(char*, int, abi::CuDevice) = nullptr;
  int (*primary_retain)(abi::CuContext*, abi::CuDevice) = nullptr;
  int (*primary_release)(abi::CuDevice) = nullptr;
  int (*context_current)(abi::CuContext*) = nullptr;
  int (*context_device)(abi::CuDevice*) = nullptr;
  int (*context_push)(abi::CuContext) = nullptr;
  int (*context_pop)(abi::CuContext*) = nullptr;
  int (*context_synchronize)() = nullptr;
  int (*stream_priorities)(int* least, int* greatest) = nullptr;
  int (*stream_create)(abi::CuStream*, unsigned, int priority) = nullptr;
  int (*stream_destroy)(abi::CuStream) = nullptr;
  int (*stream_wait)(abi::CuStream, abi::CuEvent, unsigned) = nullptr;
  int (*event_create)(abi::CuEvent*, unsigned) = nullptr;
  int (*event_destroy)(abi::CuEvent) = nullptr;
  int (*event_record)(abi::CuEvent, abi::CuStream) = nullptr;
  int (*event_query)(abi::CuEvent) = nullptr;
  int (*mem_alloc)(abi::CuDevicePointer*, size_t) = nullptr;
  int (*mem_free)(abi::CuDevicePointer) = nullptr;
  int (*memset8)(abi::CuDevicePointer, unsigned char, size_t, abi::CuStream) = nullptr;
  int (*host_alloc)(void**, size_t, unsigned) = nullptr;
  int (*host_free)(void*) = nullptr;
  int (*copy_to_device)(abi::CuDevicePointer, const void*, size_t, abi::CuStream) = nullptr;
  int (*copy_to_host)(void*, abi::CuDevicePointer, size_t, abi::CuStream) = nullptr;
  int (*copy_on_device)(abi::CuDevicePointer, abi::CuDevicePointer, size_t,
                        abi::CuStream) = nullptr;
  int (*pointer_attribute)(void*, int, abi::CuDevicePointer) = nullptr;

  // Since CUDA 10; null before.
  int (*stream_is_capturing)(abi::CuStream, int*) = nullptr;
  int (*exchange_capture_mode)(int*) = nullptr;

  // "out of memory (CUDA error 2)".
  std::string Text(int error) const;
};

// libnccl.so.2 (or DTRAIN_NCCL_LIBRARY).
struct NcclApi {
  std::string file;
  int version = 0;  // 22809 is 2.28.9

  int (*get_version)(int*) = nullptr;
  int (*get_unique_id)(abi::NcclUniqueId*) = nullptr;
  int (*init_rank)(abi::NcclComm**, int, abi::NcclUniqueId, int, abi::NcclConfig*) = nullptr;
  int (*finalize)(abi::NcclComm*) = nullptr;
  int (*destroy)(abi::NcclComm*) = nullptr;
  int (*abort)(abi::NcclComm*) = nullptr;
  int (*async_error)(abi::NcclComm*, int*) = nullptr;
  const char* (*error_string)(int) = nullptr;
  const char* (*last_error)(abi::NcclComm*) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*all_reduce)(const void*, void*, size_t, int, int, abi::NcclComm*, abi::CuStream) = nullptr;
  int (*broadcast)(const void*, void*, size_t, int, int, abi::NcclComm*, abi::CuStream) = nullptr;
  int (*reduce)(const void*, void*, size_t, int, int, int, abi::NcclComm*, abi::CuStream) = nullptr;
  int (*all_gather)(const void*, void*, size_t, int, abi::NcclComm*, abi::CuStream) = nullptr;
  int (*reduce_scatter)(const void*, void*, size_t, int, int, abi::NcclComm*,
                        abi::CuStream) = nullptr;
  int (*send)(const void*, size_t, int, int, abi::NcclComm*, abi::CuStream) = nullptr;
  int (*receive)(void*, size_t, int, int, abi::NcclComm*, abi::CuStream) = nullptr;

  // Null in releases before the one named.
  int (*split)(abi::NcclComm*, int, int, abi::NcclComm**, abi::NcclConfig*) = nullptr;  // 2.18.1
  int (*all_to_all)(const void*, void*, size_t, int, abi::NcclComm*,
                    abi::CuStream) = nullptr;  // 2.28.3
  // 2.19.1, all four
  int (*mem_alloc)(void**, size_t) = nullptr;
  int (*mem_free)(void*) = nullptr;
  int (*comm_register)(abi::NcclComm*, void*, size_t, void**) = nullptr;
  int (*comm_deregister)(abi::NcclComm*, void*) = nullptr;

  bool registers() const {
    return mem_alloc != nullptr && mem_free != nullptr && comm_register != nullptr &&
           comm_deregister != nullptr;
  }
  // What NCCL has warned of last, in any thread and of any communicator; empty: nothing.
  std::string LastError() const;
};

// "2.28.9".
std::string NcclVersionText(int version);

struct Libraries {
  CudaApi cuda;
  NcclApi nccl;
};

// Opens both, once per process; they stay open. Makes no CUDA context. Fails with
// DTRAIN_ERROR_DEVICE when there is no GPU, or a library or function is missing or too old.
Result<const Libraries*> LoadLibraries();

// Whether this process could use NCCL: the libraries are there and there is a GPU. Cheap where
// there is none.
bool NcclUsable(std::string& why_not);

}  // namespace dtrain::runtime
