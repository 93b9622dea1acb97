// SPDX-License-Identifier: Apache-2.0
#include "runtime/nccl/libraries.h"

#include <dlfcn.h>

#include <cstdlib>
#include <mutex>

namespace dtrain::runtime {
namespace {

constexpr int kOldestNccl = 21403;  // the first with ncclCommInitRankConfig

// Looks functions up in one opened library and remembers what it did not find.
class Symbols {
 public:
  explicit Symbols(void* library) : library_(library) {}

  template <typename Function>
  void Need(Function*& function, const char* name) {
    Want(function, name);
    if (function != nullptr) return;
    missing_ += (missing_.empty() ? "" : ", ") + std::string(name);
  }
  template <typename Function>
  void Want(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(dlsym(library_, name));
  }
  const std::string& missing() const { return missing_; }

 private:
  void* const library_;
  std::string missing_;
};

Error Bad(const std::string& text) { return {DTRAIN_ERROR_DEVICE, text}; }

// RTLD_LOCAL keeps a second NCCL of the program's apart from this one; a program that has loaded
// a library of this name already (torch does) shares it with us.
Result<void*> Open(const char* variable, const char* usual, std::string& file) {
  const char* given = std::getenv(variable);
  const bool chosen = given != nullptr && *given != '\0';
  file = chosen ? given : usual;
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) return library;
  const char* why = dlerror();
  return Bad(std::string(chosen ? variable : "the library") + (chosen ? "=" : " ") +
             Printable(file) + " cannot be opened: " + Printable(why == nullptr ? "" : why) +
             (chosen ? "" : std::string("; ") + variable + " can name the file"));
}

MaybeError LookUp(CudaApi& api, void* library) {
  Symbols symbols(library);
  symbols.Need(api.init, "cuInit");
  symbols.Need(api.error_string, "cuGetErrorString");
  symbols.Need(api.driver_version, "cuDriverGetVersion");
  symbols.Need(api.device_count, "cuDeviceGetCount");
  symbols.Need(api.device_get, "cuDeviceGet");
  symbols.Need(api.device_name, "cuDeviceGetName");
  // The second one tells the slices of a divided GPU apart.
  symbols.Want(api.device_uuid, "cuDeviceGetUuid_v2");
  if (api.device_uuid == nullptr) symbols.Need(api.device_uuid, "cuDeviceGetUuid");
  symbols.Need(api.device_pci, "cuDeviceGetPCIBusId");
  symbols.Need(api.primary_retain, "cuDevicePrimaryCtxRetain");
  symbols.Want(api.primary_release, "cuDevicePrimaryCtxRelease_v2");
  if (api.primary_release == nullptr) {
    symbols.Need(api.primary_release, "cuDevicePrimaryCtxRelease");
  }
  symbols.Need(api.context_current, "cuCtxGetCurrent");
  symbols.Need(api.context_device, "cuCtxGetDevice");
  symbols.Need(api.context_push, "cuCtxPushCurrent_v2");
  symbols.Need(api.context_pop, "cuCtxPopCurrent_v2");
  symbols.Need(api.context_synchronize, "cuCtxSynchronize");
  symbols.Need(api.stream_priorities, "cuCtxGetStreamPriorityRange");
  symbols.Need(api.stream_create, "cuStreamCreateWithPriority");
  symbols.Need(api.stream_destroy, "cuStreamDestroy_v2");
  symbols.Need(api.stream_wait, "cuStreamWaitEvent");
  symbols.Need(api.event_create, "cuEventCreate");
  symbols.Need(api.event_destroy, "cuEventDestroy_v2");
  symbols.Need(api.event_record, "cuEventRecord");
  symbols.Need(api.event_query, "cuEventQuery");
  symbols.Need(api.mem_alloc, "cuMemAlloc_v2");
  symbols.Need(api.mem_free, "cuMemFree_v2");
  symbols.Need(api.memset8, "cuMemsetD8Async");
  symbols.Need(api.host_alloc, "cuMemHostAlloc");
  symbols.Need(api.host_free, "cuMemFreeHost");
  symbols.Need(api.copy_to_device, "cuMemcpyHtoDAsync_v2");
  symbols.Need(api.copy_to_host, "cuMemcpyDtoHAsync_v2");
  symbols.Need(api.copy_on_device, "cuMemcpyDtoDAsync_v2");
  symbols.Need(api.pointer_attribute, "cuPointerGetAttribute");
  symbols.Want(api.stream_is_capturing, "cuStreamIsCapturing");
  symbols.Want(api.exchange_capture_mode, "cuThreadExchangeStreamCaptureMode");
  if (symbols.missing().empty()) return std::nullopt;
  int version = 0;
  if (api.driver_version != nullptr) api.driver_version(&version);
  return Bad("the CUDA driver " + Printable(api.file) + " (for CUDA " +
             std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10) +
             ") has no function " + symbols.missing() + ": update the driver");
}

void LookUpCalls(NcclApi& api, Symbols& symbols) {
  symbols.Need(api.get_unique_id, "ncclGetUniqueId");
  symbols.Need(api.init_rank, "ncclCommInitRankConfig");
  symbols.Need(api.finalize, "ncclCommFinalize");
  symbols.Need(api.destroy, "ncclCommDestroy");
  symbols.Need(api.abort, "ncclCommAbort");
  symbols.Need(api.async_error, "ncclCommGetAsyncError");
  symbols.Need(api.error_string, "ncclGetErrorString");
  symbols.Need(api.last_error, "ncclGetLastError");
  symbols.Need(api.group_start, "ncclGroupStart");
  symbols.Need(api.group_end, "ncclGroupEnd");
  symbols.Need(api.all_reduce, "ncclAllReduce");
  symbols.Need(api.broadcast, "ncclBroadcast");
  symbols.Need(api.reduce, "ncclReduce");
  symbols.Need(api.all_gather, "ncclAllGather");
  symbols.Need(api.reduce_scatter, "ncclReduceScatter");
  symbols.Need(api.send, "ncclSend");
  symbols.Need(api.receive, "ncclRecv");
  symbols.Want(api.split, "ncclCommSplit");
  symbols.Want(api.all_to_all, "ncclAlltoAll");
  symbols.Want(api.mem_alloc, "ncclMemAlloc");
  symbols.Want(api.mem_free, "ncclMemFree");
  symbols.Want(api.comm_register, "ncclCommRegister");
  symbols.Want(api.comm_deregister, "ncclCommDeregister");
}

MaybeError LookUp(NcclApi& api, void* library) {
  Symbols symbols(library);
  symbols.Need(api.get_version, "ncclGetVersion");
  if (api.get_version == nullptr || api.get_version(&api.version) != abi::kNcclSuccess) {
    return Bad(Printable(api.file) + " does not report its version (ncclGetVersion): is it NCCL?");
  }
  LookUpCalls(api, symbols);
  const std::string found =
      "NCCL " + NcclVersionText(api.version) + " (" + Printable(api.file) + ")";
  if (api.version < kOldestNccl) {
    return Bad(found + " is too old: " + NcclVersionText(kOldestNccl) +
               " or newer is needed, or DTRAIN_NCCL_LIBRARY naming one");
  }
  if (!symbols.missing().empty()) {
    return Bad(found + " has no function " + symbols.missing() +
               ": the file is damaged or not NVIDIA's; DTRAIN_NCCL_LIBRARY can name another one");
  }
  return std::nullopt;
}

MaybeError Load(Libraries& libraries) {
  // The driver first: a machine without GPU does not have it, and NCCL is 200 MB to map.
  auto cuda = Open("DTRAIN_CUDA_LIBRARY", "libcuda.so.1", libraries.cuda.file);
  if (!cuda.ok()) return cuda.error();
  if (MaybeError error = LookUp(libraries.cuda, *cuda)) return error;
  int count = 0;
  int code = libraries.cuda.init(0);
  if (code == abi::kCudaSuccess) code = libraries.cuda.device_count(&count);
  if (code != abi::kCudaSuccess) {
    return Bad("the CUDA driver could not start: " + libraries.cuda.Text(code));
  }
  if (count == 0) {
    return Bad("the CUDA driver shows no GPU to this process (CUDA_VISIBLE_DEVICES hides all?)");
  }
  auto nccl = Open("DTRAIN_NCCL_LIBRARY", "libnccl.so.2", libraries.nccl.file);
  if (!nccl.ok()) return nccl.error();
  return LookUp(libraries.nccl, *nccl);
}

}  // namespace

std::string NcclVersionText(int version) {
  // Up to 2.8 the number was 1000 * major.
  const int major = version < 10000 ? version / 1000 : version / 10000;
  const int minor = version < 10000 ? version % 1000 / 100 : version % 10000 / 100;
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(version % 100);
}

std::string CudaApi::Text(int error) const {
  const char* text = nullptr;
  if (error_string != nullptr) error_string(error, &text);
  return std::string(text == nullptr ? "unknown" : text) + " (CUDA error " + std::to_string(error) +
         ")";
}

// One array for all threads, which they write under a lock that only NCCL has: the text may be half
// another one, and ThreadSanitizer must not look at how we read it. Its last byte stays 0.
__attribute__((no_sanitize("thread"))) std::string NcclApi::LastError() const {
  constexpr size_t kSize = 1024;
  char copy[kSize];
  const volatile char* said = last_error(nullptr);
  size_t length = 0;
  for (; said != nullptr && length < kSize && said[length] != '\0'; ++length) {
    copy[length] = said[length];
  }
  return std::string(copy, length);
}

Result<const Libraries*> LoadLibraries() {
  static std::mutex* const mutex = new std::mutex;
  static Libraries* const libraries = new Libraries;
  static bool tried = false;
  static MaybeError* const failure = new MaybeError;
  const std::lock_guard lock(*mutex);
  if (!tried) *failure = Load(*libraries);
  tried = true;
  if (*failure) return **failure;
  return static_cast<const Libraries*>(libraries);
}

bool NcclUsable(std::string& why_not) {
  const auto libraries = LoadLibraries();
  if (!libraries.ok()) why_not = libraries.error().message;
  return libraries.ok();
}

}  // namespace dtrain::runtime
