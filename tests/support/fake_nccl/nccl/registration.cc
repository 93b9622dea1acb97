// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_nccl/nccl/registration.h"

#include <algorithm>
#include <cstdint>
#include <mutex>

#include "tests/support/fake_nccl/cuda/fake_cuda.h"
#include "tests/support/fake_nccl/nccl/comm.h"
#include "tests/support/fake_nccl/nccl/knobs.h"

namespace fake_nccl {
namespace {

// Of all communicators, for ncclMemFree, which looks at none.
struct Known {
  std::mutex mutex;
  Registered all;
};

Known& AllKnown() {
  static auto* const known = new Known;
  return *known;
}

std::shared_ptr<Registration> Find(const ncclComm& comm, const char* pointer, size_t bytes) {
  if (pointer == nullptr || bytes == 0) return nullptr;
  for (const auto& registration : comm.registrations) {
    if (registration->begin <= pointer &&
        pointer + bytes <= registration->begin + registration->bytes) {
      return registration;
    }
  }
  return nullptr;
}

// How a rank uses registered buffers: which of them are, whether it works in place, and how far
// from their beginnings they are.
uint32_t UseOf(const ncclComm& comm, const Operation& o, Registered& used) {
  const Extent extent = ExtentOf(o, comm.rank, comm.size);
  const auto in = Find(comm, o.input, std::max<size_t>(extent.input, 1));
  const auto out = Find(comm, o.output, std::max<size_t>(extent.output, 1));
  if (in == nullptr && out == nullptr) return 0;
  for (const auto& one : {in, out}) {
    if (one != nullptr) used.push_back(one);
  }
  const auto block = static_cast<size_t>(comm.rank) * o.count * ElementSize(o.type);
  const bool gathers = o.kind == Kind::kAllGather, scatters = o.kind == Kind::kReduceScatter;
  const bool in_place = o.input + (scatters ? block : 0) == o.output + (gathers ? block : 0);
  uint32_t use = 1U | (in != nullptr ? 2U : 0U) | (out != nullptr ? 4U : 0U) | (in_place ? 8U : 0U);
  const auto offset = [](const auto& of, const char* at) {
    return of == nullptr ? 0U : static_cast<uint32_t>(at - of->begin);
  };
  if (!gathers) use += offset(in, o.input) * 16;
  if (!scatters) use += offset(out, o.output) * 48;
  return use;
}

// The host's thread looks at the abort flag meanwhile.
int Exchange(ncclComm& comm, uint32_t use) {
  TheWitness().registered.fetch_add(1);
  World& world = *comm.line->world;
  const uint32_t mine = world.mine().registered.fetch_add(1) + 1;
  world.mine().use.store(use);
  const auto stopped = [&] { return Fail(kInternalError, "aborted while it registered"); };
  for (int r = 0; r < world.size(); ++r) {
    for (Pause pause; world.entry(r).registered.load() < mine; pause()) {
      if (Stopped(comm)) return stopped();
    }
    for (Pause pause; world.entry(r).use.load() != use; pause()) {
      if (Stopped(comm)) return stopped();
    }
  }
  // Nobody goes on to the next one while another still reads.
  if (!world.MeetOnHost([&] { return Stopped(comm); })) return stopped();
  return kSuccess;
}

}  // namespace

int ExchangeRegistered(ncclComm& comm, const Operation& operation, Registered& used) {
  const uint32_t use = comm.registrations.empty() ? 0 : UseOf(comm, operation, used);
  return use == 0 ? kSuccess : Exchange(comm, use);
}

int ExchangeRegistered(ncclComm& comm, const std::vector<Transfer>& transfers, Registered& used) {
  bool in = false, out = false;
  for (const Transfer& t : transfers) {
    const auto found = Find(comm, t.from != nullptr ? t.from : t.to, std::max<size_t>(t.bytes, 1));
    if (found == nullptr) continue;
    used.push_back(found);
    (t.from != nullptr ? in : out) = true;
  }
  return in || out ? Exchange(comm, 1U | (in ? 2U : 0U) | (out ? 4U : 0U)) : kSuccess;
}

}  // namespace fake_nccl

using namespace fake_nccl;

FAKE_EXPORT int ncclMemAlloc(void** memory, size_t bytes) {
  int device = 0;
  if (cuCtxGetDevice(&device) != 0) return Fail(kCudaError, "no context");
  const DeviceCall call(device);
  *memory = fake_cuda_map(bytes, device);
  return *memory == nullptr ? Fail(kCudaError, "out of memory") : kSuccess;
}

// Takes the memory away, whoever works in it, and whoever has it registered.
FAKE_EXPORT int ncclMemFree(void* memory) {
  int device = 0;
  if (cuCtxGetDevice(&device) != 0) return Fail(kCudaError, "no context");
  const DeviceCall call(device);
  {
    const std::lock_guard lock(AllKnown().mutex);
    for (const auto& registration : AllKnown().all) {
      if (registration->begin == memory && !registration->gone.load()) {
        TheWitness().freed_registered.fetch_add(1);
      }
    }
  }
  return fake_cuda_unmap(memory) == 0 ? kSuccess : Fail(kInvalidArgument, "not from ncclMemAlloc");
}

// The list has no lock. Of memory that is not ncclMemAlloc's, and where it was told so, it says
// that it succeeded, registers nothing and leaves the handle alone.
FAKE_EXPORT int ncclCommRegister(ncclComm* comm, void* buffer, size_t bytes, void** handle) {
  const CommCall call(comm);
  if (const int code = CheckReady(*comm)) return code;
  if (comm->finalized) return Fail(kInvalidUsage, "the communicator has ended");
  if (Asked("FAKE_NCCL_FAIL_REGISTER", comm->rank)) return Fail(kSystemError, "injected");
  if (Asked("FAKE_NCCL_HANG_REGISTER", comm->rank)) Hang();
  if (fake_cuda_mapped(buffer, bytes) == 0 || Asked("FAKE_NCCL_REGISTERS_NOT", comm->rank)) {
    return kSuccess;
  }
  const auto made = std::make_shared<Registration>();
  made->begin = static_cast<const char*>(buffer);
  made->bytes = bytes;
  comm->registrations.push_back(made);
  *handle = made.get();
  const std::lock_guard lock(AllKnown().mutex);
  AllKnown().all.push_back(made);
  return kSuccess;
}

// While kernels work in it, these lose their footing.
FAKE_EXPORT int ncclCommDeregister(ncclComm* comm, void* handle) {
  const CommCall call(comm);
  if (handle == nullptr && TheProfile().no_handle_deregisters) return kSuccess;
  auto& all = comm->registrations;
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.get() == handle; });
  if (found == all.end()) return Fail(kInvalidUsage, "Deregister: Could not find handle");
  (*found)->gone.store(true);
  all.erase(found);
  return kSuccess;
}
