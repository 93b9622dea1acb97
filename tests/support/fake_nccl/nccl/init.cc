// SPDX-License-Identifier: Apache-2.0
// How communicators come about.
#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <tuple>

#include "tests/support/fake_nccl/nccl/group.h"
#include "tests/support/fake_nccl/nccl/knobs.h"
#include "tests/support/fake_nccl/nccl/root.h"

namespace fake_nccl {
namespace {

struct Config {
  size_t size;
  unsigned magic, version;
  int blocking;
};

bool Blocking(const Config* config, bool otherwise) {
  bool blocking = otherwise;
  if (config != nullptr && config->blocking != INT_MIN) blocking = config->blocking != 0;
  const char* forced = getenv("NCCL_COMM_BLOCKING");
  if (forced == nullptr) return blocking;
  if (atoi(forced) != 0) return true;
  return TheProfile().forced_both_ways ? false : blocking;
}

void Introduce(World& world, int device, uint64_t host) {
  Entry& mine = world.mine();
  mine.version = TheProfile().version;
  mine.host = host;
  cuDeviceGetPCIBusId(mine.bus, sizeof(mine.bus), device);
  cuDeviceGetUuid(mine.uuid, device);
}

bool SameGpuAs(const Entry& a, const Entry& b) {
  if (a.host != b.host) return false;
  if (TheProfile().same_gpu == SameGpu::kUuid) return std::memcmp(a.uuid, b.uuid, 16) == 0;
  return std::strcmp(a.bus, b.bus) == 0;
}

// As each version finds two ranks on one GPU, or does not.
int CheckGpus(World& world, const Waiter& stop) {
  const char* several = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  if (TheProfile().shared_gpu_allowed && several != nullptr && atoi(several) != 0) return kSuccess;
  bool any = false, mine = false;
  int first_of_host = world.rank();
  for (int a = 0; a < world.size(); ++a) {
    if (world.entry(a).host == world.mine().host && a < first_of_host) first_of_host = a;
    for (int b = 0; b < a; ++b) {
      if (!SameGpuAs(world.entry(a), world.entry(b))) continue;
      any = true;
      mine = mine || a == world.rank() || b == world.rank();
    }
  }
  if (!any) return kSuccess;
  const char* const text = "Duplicate GPU detected";
  switch (TheProfile().same_gpu) {
    case SameGpu::kUuid:
      return Fail(kInvalidUsage, text);
    case SameGpu::kBusIdFirstRankOnly:
      mine = world.rank() == first_of_host;
      break;
    case SameGpu::kBusId:
      break;
  }
  if (mine) return Fail(kInvalidUsage, text);
  for (Pause pause; !stop(); pause()) {
  }
  return Fail(kInternalError, "aborted while it waited for the others");
}

// Once the world is known.
int Meet(ncclComm& comm, std::shared_ptr<World> world, uint64_t host) {
  const auto stop = [&comm] { return Stopped(comm); };
  Introduce(*world, comm.device, host);
  if (!world->MeetOnHost(stop)) return Fail(kInternalError, "aborted while it met the others");
  for (int r = 0; r < world->size(); ++r) {
    if (world->entry(r).version != world->mine().version) {
      return Fail(kInvalidUsage, "Mismatched NCCL versions detected");
    }
  }
  if (const int code = CheckGpus(*world, stop)) return code;
  world->mine().met.store(1);
  if (!world->MeetOnHost(stop)) return Fail(kInternalError, "aborted while it met the others");
  comm.line->device = comm.device;
  comm.line->world = std::move(world);
  comm.ready = true;
  return kSuccess;
}

void HangUntilStopped(ncclComm& comm) {
  for (Pause pause; !Stopped(comm); pause()) {
  }
}

int Start(ncclComm& comm, const UniqueId& id) {
  const CommContext context(comm.device);
  if (Asked("FAKE_NCCL_HANG_INIT", comm.rank)) {
    HangUntilStopped(comm);
    return Fail(kInternalError, "aborted");
  }
  if (Number("FAKE_NCCL_FAIL_INIT", -1) == comm.rank) return Fail(kSystemError, "injected");
  std::this_thread::sleep_for(
      std::chrono::milliseconds(AskedNumber("FAKE_NCCL_INIT_MS", comm.rank)));
  std::shared_ptr<World> world;
  const auto stop = [&comm] { return Stopped(comm); };
  if (const int code = AskRoot(id, comm.rank, comm.size, stop, world)) return code;
  return Meet(comm, std::move(world), HostHash());
}

ncclComm* MakeComm(int rank, int size, int device, bool blocking) {
  auto* comm = new ncclComm;
  comm->rank = rank;
  comm->size = size;
  comm->device = device;
  comm->blocking = blocking;
  return comm;
}

// The ranks that give the same color, ordered by `key`: `part` has met.
int RunSplit(ncclComm& comm, int color, int key, ncclComm*& part, bool blocking) {
  World& world = *comm.line->world;
  const auto stop = [&comm] { return Stopped(comm); };
  const bool fail = Asked("FAKE_NCCL_FAIL_SPLIT", comm.rank);
  const bool all_fail = Number("FAKE_NCCL_FAIL_SPLITS", 0) != 0;
  if (color >= 0) part = MakeComm(0, 0, comm.device, blocking);
  if (Asked("FAKE_NCCL_HANG_SPLIT", comm.rank)) {
    HangUntilStopped(comm);
    return Fail(kInternalError, "aborted");
  }
  if (all_fail && !world.MeetOnHost(stop)) return kInternalError;
  if (fail || all_fail) {
    if (color < 0) abort();  // as NCCL, which looks into the part that there is not
    part->state.store(kSystemError);
    return Fail(kSystemError, "injected");
  }
  Entry& mine = world.mine();
  mine.color = color;
  mine.key = key;
  if (!world.MeetOnHost(stop)) return kInternalError;
  int rank = 0, size = 0, first = world.rank();
  for (int r = 0; r < world.size(); ++r) {
    const Entry& other = world.entry(r);
    if (other.color != color) continue;
    ++size;
    rank += std::tie(other.key, r) < std::make_tuple(key, world.rank()) ? 1 : 0;
    if (std::tie(other.key, r) < std::make_tuple(world.entry(first).key, first)) first = r;
  }
  int file = -1;
  if (color >= 0 && rank == 0) mine.path = {getpid(), file = World::MakeFile()};
  int code = world.MeetOnHost(stop) ? kSuccess : kInternalError;
  if (code == kSuccess && color >= 0) {
    part->rank = rank;
    part->size = size;
    auto own = World::Open(world.entry(first).path, rank, size);
    code = own == nullptr ? Fail(kSystemError, "no memory file")
                          : Meet(*part, std::move(own), mine.host);
  }
  const bool met = world.MeetOnHost(stop);
  if (file >= 0) close(file);
  return code == kSuccess && !met ? kInternalError : code;
}

}  // namespace
}  // namespace fake_nccl

using namespace fake_nccl;

FAKE_EXPORT int ncclGetUniqueId(UniqueId* id) {
  int device = 0;
  cuCtxGetDevice(&device);
  const DeviceCall call(device);
  return MakeRoot(*id);
}

FAKE_EXPORT int ncclCommInitRankConfig(ncclComm** out, int size, UniqueId id, int rank,
                                       Config* config) {
  int device = 0;
  if (cuCtxGetDevice(&device) != 0) return Fail(kCudaError, "no context");
  if (config != nullptr && (config->magic != 0xcafebeef || config->size < 24)) {
    return Fail(kInvalidArgument,
                "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
  }
  if (size < 1 || rank < 0 || rank >= size) return Fail(kInvalidArgument, "no such rank");
  ncclComm* const comm = MakeComm(rank, size, device, Blocking(config, true));
  *out = comm;
  const CommCall call(comm);
  BeginGroup();
  if (!comm->blocking) comm->state.store(kInProgress);
  const int added = Add(HostTask{comm, false, [comm, id] {
                                   const int code = Start(*comm, id);
                                   if (comm->blocking && code != kSuccess) comm->state.store(code);
                                   return code;
                                 }});
  const int code = EndGroup();
  return added != kSuccess ? added : code;
}

FAKE_EXPORT int ncclCommInitRank(ncclComm** out, int size, UniqueId id, int rank) {
  return ncclCommInitRankConfig(out, size, id, rank, nullptr);
}

// Of a parent that does not block: success at once, and the place is written some time later.
FAKE_EXPORT int ncclCommSplit(ncclComm* comm, int color, int key, ncclComm** out, Config* config) {
  const CommCall call(comm);
  if (const int code = CheckReady(*comm)) return code;
  if (color < -1) return Fail(kInvalidArgument, "no such color");
  const bool blocking = Blocking(config, comm->blocking);
  *out = nullptr;
  BeginGroup();
  const int code = Add(HostTask{comm, false, [=] {
                                  const CommContext context(comm->device);
                                  ncclComm* part = nullptr;
                                  const int result = RunSplit(*comm, color, key, part, blocking);
                                  *out = part;
                                  return result;
                                }});
  const int ended = EndGroup();
  if (code != kSuccess) return code;
  return ended == kInProgress ? kSuccess : ended;
}

FAKE_EXPORT int ncclCommCount(const ncclComm* comm, int* count) {
  *count = comm->size;
  return kSuccess;
}

FAKE_EXPORT int ncclCommUserRank(const ncclComm* comm, int* rank) {
  *rank = comm->rank;
  return kSuccess;
}

FAKE_EXPORT int ncclCommCuDevice(const ncclComm* comm, int* device) {
  *device = comm->device;
  return kSuccess;
}
