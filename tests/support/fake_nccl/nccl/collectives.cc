// SPDX-License-Identifier: Apache-2.0
// The functions that communicate.
#include "tests/support/fake_nccl/cuda/fake_cuda.h"
#include "tests/support/fake_nccl/nccl/group.h"

namespace fake_nccl {
namespace {

int Check(ncclComm& comm, const Operation& o) {
  if (const int code = CheckReady(comm)) return code;
  if (comm.revoked || comm.finalized) return Fail(kInvalidUsage, "the communicator has ended");
  if (ElementSize(o.type) == 0) return Fail(kInvalidArgument, "no such type");
  if (o.op < 0 || o.op > 4) return Fail(kInvalidArgument, "no such operation");
  if (o.root < 0 || o.root >= comm.size) return Fail(kInvalidArgument, "no such rank");
  const Extent extent = ExtentOf(o, comm.rank, comm.size);
  if (extent.input > 0 && o.input == nullptr) return Fail(kInvalidArgument, "sendbuff is NULL");
  if (extent.output > 0 && o.output == nullptr) return Fail(kInvalidArgument, "recvbuff is NULL");
  return kSuccess;
}

// Within the calling thread's group; each call is one of its own.
int Give(ncclComm* comm, const Operation& checked, std::vector<DeviceTask> tasks) {
  if (comm == nullptr) return Fail(kInvalidArgument, "comm is NULL");
  const CommCall call(comm);
  BeginGroup();
  int code = Check(*comm, checked);
  if (code != kSuccess) {
    Spoil(code);
  } else {
    for (const DeviceTask& task : tasks) {
      if (code == kSuccess) code = Add(task);
    }
  }
  const int ended = EndGroup();
  return code != kSuccess ? code : ended;
}

int Collect(const Operation& o, ncclComm* comm, void* stream) {
  DeviceTask task;
  task.comm = comm;
  task.stream = stream;
  task.operation = o;
  task.bytes = o.count * ElementSize(o.type);
  return Give(comm, o, {task});
}

DeviceTask Move(ncclComm* comm, void* stream, int peer, const char* from, char* to, size_t bytes) {
  DeviceTask task;
  task.comm = comm;
  task.stream = stream;
  task.transfer = {peer, from, to, bytes};
  task.bytes = bytes;
  return task;
}

Operation Any(int type, int peer) {
  Operation o;
  o.type = type;
  o.root = peer;
  return o;
}

const char* In(const void* pointer) { return static_cast<const char*>(pointer); }
char* Out(void* pointer) { return static_cast<char*>(pointer); }

}  // namespace
}  // namespace fake_nccl

using namespace fake_nccl;

FAKE_EXPORT int ncclAllReduce(const void* input, void* output, size_t count, int type, int op,
                              ncclComm* comm, void* stream) {
  return Collect({Kind::kAllReduce, In(input), Out(output), count, type, op, 0}, comm, stream);
}

FAKE_EXPORT int ncclBroadcast(const void* input, void* output, size_t count, int type, int root,
                              ncclComm* comm, void* stream) {
  return Collect({Kind::kBroadcast, In(input), Out(output), count, type, 0, root}, comm, stream);
}

FAKE_EXPORT int ncclReduce(const void* input, void* output, size_t count, int type, int op,
                           int root, ncclComm* comm, void* stream) {
  return Collect({Kind::kReduce, In(input), Out(output), count, type, op, root}, comm, stream);
}

FAKE_EXPORT int ncclAllGather(const void* input, void* output, size_t count, int type,
                              ncclComm* comm, void* stream) {
  return Collect({Kind::kAllGather, In(input), Out(output), count, type, 0, 0}, comm, stream);
}

FAKE_EXPORT int ncclReduceScatter(const void* input, void* output, size_t count, int type, int op,
                                  ncclComm* comm, void* stream) {
  return Collect({Kind::kReduceScatter, In(input), Out(output), count, type, op, 0}, comm, stream);
}

FAKE_EXPORT int ncclSend(const void* buffer, size_t count, int type, int peer, ncclComm* comm,
                         void* stream) {
  return Give(comm, Any(type, peer),
              {Move(comm, stream, peer, In(buffer), nullptr, count * ElementSize(type))});
}

FAKE_EXPORT int ncclRecv(void* buffer, size_t count, int type, int peer, ncclComm* comm,
                         void* stream) {
  return Give(comm, Any(type, peer),
              {Move(comm, stream, peer, nullptr, Out(buffer), count * ElementSize(type))});
}

FAKE_EXPORT int ncclAlltoAll(const void* input, void* output, size_t count, int type,
                             ncclComm* comm, void* stream) {
  const size_t bytes = count * ElementSize(type);
  std::vector<DeviceTask> tasks;
  for (int r = 0; r < comm->size; ++r) {
    const size_t at = static_cast<size_t>(r) * bytes;
    tasks.push_back(Move(comm, stream, r, In(input) + at, nullptr, bytes));
    tasks.push_back(Move(comm, stream, r, nullptr, Out(output) + at, bytes));
  }
  return Give(comm, Any(type, 0), std::move(tasks));
}
