// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/nccl.h"

#include <dlfcn.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>

namespace dtrain::gpu_check {
namespace {

using std::chrono::steady_clock;

double SecondsSince(steady_clock::time_point start) {
  return std::chrono::duration<double>(steady_clock::now() - start).count();
}

const void* Address(Pointer pointer) {
  return reinterpret_cast<const void*>(static_cast<uintptr_t>(pointer));
}

// Rank 0 writes the id beside the file and renames it, so that nobody reads half of one.
bool ShareId(const Nccl& nccl, const std::string& file, int rank, NcclId& id) {
  if (rank == 0) {
    if (nccl.GetUniqueId(&id) != 0) return false;
    if (file.empty()) return true;
    std::ofstream(file + ".part", std::ios::binary).write(id.bytes, sizeof(id.bytes));
    return std::rename((file + ".part").c_str(), file.c_str()) == 0;
  }
  const auto start = steady_clock::now();
  while (SecondsSince(start) < 30) {
    std::ifstream in(file, std::ios::binary);
    if (in && in.read(id.bytes, sizeof(id.bytes))) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

}  // namespace

const Nccl& Nccl::Open(Result& result) {
  static Nccl nccl = {};
  if (nccl.GetVersion != nullptr) return nccl;
  const char* file = std::getenv("DTRAIN_NCCL_LIBRARY");
  if (file == nullptr) file = "libnccl.so.2";
  void* library = dlopen(file, RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    result.CouldNot(std::string("no NCCL: ") + dlerror());
    result.Give();
  }
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function != nullptr) return;
    result.CouldNot(std::string(file) + " has no " + name);
    result.Give();
  };
  find(nccl.GetUniqueId, "ncclGetUniqueId");
  find(nccl.InitRank, "ncclCommInitRankConfig");
  find(nccl.AllReduce, "ncclAllReduce");
  find(nccl.Destroy, "ncclCommDestroy");
  find(nccl.Abort, "ncclCommAbort");
  find(nccl.ErrorString, "ncclGetErrorString");
  find(nccl.GetVersion, "ncclGetVersion");
  return nccl;
}

int Nccl::Version() const {
  int version = 0;
  return GetVersion(&version) == 0 ? version : 0;
}

RawComm::RawComm(Result& result, const std::string& file, int rank, int ranks)
    : result_(result), nccl_(Nccl::Open(result)) {
  NcclId id = {};
  if (!ShareId(nccl_, file, rank, id)) {
    result.Miss("no unique id of NCCL");
    result.Give();
  }
  NcclSettings settings;
  const auto start = steady_clock::now();
  error_ = nccl_.InitRank(&comm_, ranks, id, rank, &settings);
  init_seconds_ = SecondsSince(start);
}

std::string RawComm::ErrorText() const {
  return std::string(nccl_.ErrorString(error_)) + " (NCCL error " + std::to_string(error_) + ")";
}

void RawComm::AllReduce(Pointer input, Pointer output, size_t count, Handle stream) const {
  const int error = nccl_.AllReduce(Address(input), const_cast<void*>(Address(output)), count,
                                    kNcclFloat, kNcclSumOp, comm_, stream);
  if (error == 0) return;
  result_.Miss(std::string("ncclAllReduce: ") + nccl_.ErrorString(error));
  result_.Give();
}

void RawComm::Destroy() {
  if (comm_ != nullptr) nccl_.Destroy(comm_);
  comm_ = nullptr;
}

}  // namespace dtrain::gpu_check
