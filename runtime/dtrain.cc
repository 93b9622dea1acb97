// SPDX-License-Identifier: Apache-2.0
// The C boundary: each function checks who calls when and with what, and hands on to the job.
#include "dtrain/dtrain.h"

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/arguments.h"
#include "runtime/engine/executor.h"
#include "runtime/process.h"

using namespace dtrain::runtime;  // NOLINT(google-build-using-namespace): the C functions' own home

namespace {

Place PlaceIn(const Group& group) { return {group.rank, group.size}; }

// `make` returns the checked collective for a place.
template <typename Make>
dtrain_status Blocking(const char* name, Make make) {
  return Call(name, [&](Process& process) -> MaybeError {
    if (MaybeError error = RequireJoined(process)) return error;
    auto what = make(PlaceIn(process.job->groups().world()));
    if (!what.ok()) return what.error();
    return process.job->Run(*what);
  });
}

Operation AsOperation(Collective what) {
  Operation operation;
  operation.what = what;
  return operation;
}
Operation AsOperation(Operation operation) { return operation; }

// `make` returns the checked operation for a place, or just its collective.
template <typename Make>
dtrain_status Asynchronous(const char* name, const dtrain_options* given, dtrain_handle* handle,
                           Make make) {
  return Call(name, [&](Process& process) -> MaybeError {
    if (handle == nullptr) return Error{DTRAIN_ERROR_INVALID_ARGUMENT, "handle is NULL"};
    *handle = 0;
    if (MaybeError error = RequireJoined(process)) return error;
    dtrain_options options = DTRAIN_OPTIONS_INIT;
    if (given != nullptr && !CopyKnown(given, &options, sizeof(options))) {
      return Error{DTRAIN_ERROR_INVALID_ARGUMENT,
                   "dtrain_options.struct_size is wrong, or the structure sets fields that "
                   "libdtrain " DTRAIN_VERSION " does not have; start from DTRAIN_OPTIONS_INIT"};
    }
    if (options.flags != 0) {
      return Error{DTRAIN_ERROR_UNSUPPORTED, "dtrain_options.flags has bits that are not defined"};
    }
    Group* const group = process.job->groups().Find(IdOf(options.group));
    if (group == nullptr) {
      return Error{DTRAIN_ERROR_INVALID_ARGUMENT,
                   "dtrain_options.group is not a group of this job, or has been freed"};
    }
    if (options.name != nullptr && std::strcmp(options.name, Job::kMakesGroup) == 0) {
      return Error{DTRAIN_ERROR_INVALID_ARGUMENT,
                   std::string("dtrain_options.name is '") + Job::kMakesGroup +
                       "', which is reserved for that call: choose another name"};
    }
    auto made = make(PlaceIn(*group));
    if (!made.ok()) return made.error();
    Operation operation = AsOperation(std::move(*made));
    operation.group = group;
    operation.what.stream = options.stream;
    if (options.name != nullptr) operation.name = options.name;
    operation.what.name = NameHash(operation.name);
    if (options.shape != nullptr) {
      operation.shape += (operation.shape.empty() ? "" : ", ") + std::string(options.shape);
    }
    auto started = process.job->Start(std::move(operation));
    if (!started.ok()) return started.error();
    *handle = *started;
    return std::nullopt;
  });
}

Result<Collective> BarrierAt(const Place&) { return Collective{}; }

int ReadGroup(dtrain_group group, int (*read)(const Group&)) {
  Process& process = TheProcess();
  const std::lock_guard<std::mutex> lock(process.job_mutex);
  if (process.job == nullptr || process.phase.load() != Phase::kJoined) return -1;
  return process.job->groups().Read(IdOf(group), read);
}

bool HasTimeline(const Process& process) {
  return process.page.has_timeline() && !process.forked.load(std::memory_order_relaxed);
}

}  // namespace

extern "C" {

dtrain_status dtrain_init(const dtrain_config* config) {
  return Call("dtrain_init", [&](Process& process) { return Initialise(process, config); });
}
dtrain_status dtrain_finalize(void) {
  return Call("dtrain_finalize",
              [](Process& process) { return Finalise(process, Job::Leaving::kInTime); });
}
dtrain_status dtrain_finalize_at_exit(void) {
  return Call("dtrain_finalize_at_exit",
              [](Process& process) { return Finalise(process, Job::Leaving::kAtExit); });
}
void dtrain_abandon(void) { Executor::StopAllocating(); }
dtrain_status dtrain_rejoin(const dtrain_config* config) {
  return Call("dtrain_rejoin", [&](Process& process) { return Rejoin(process, config); });
}

int dtrain_rank(void) { return TheProcess().position.rank; }
int dtrain_size(void) { return TheProcess().position.size; }
int dtrain_local_rank(void) { return TheProcess().position.local_rank; }
int dtrain_local_size(void) { return TheProcess().position.local_size; }
int dtrain_node_rank(void) { return TheProcess().position.node_rank; }
int dtrain_node_count(void) { return TheProcess().position.nodes; }
const char* dtrain_backend(void) { return TheProcess().position.backend; }

dtrain_status dtrain_barrier(void) { return Blocking("dtrain_barrier", BarrierAt); }

dtrain_status dtrain_allreduce(const void* input, void* output, size_t count, dtrain_type type,
                               dtrain_op op) {
  return Blocking("dtrain_allreduce", [&](const Place& place) {
    return CheckedAllreduce(place, input, output, count, type, op);
  });
}

dtrain_status dtrain_broadcast(void* buffer, size_t count, dtrain_type type, int root) {
  return Blocking("dtrain_broadcast", [&](const Place& place) {
    return CheckedBroadcast(place, buffer, count, type, root);
  });
}

dtrain_status dtrain_allgather(const void* input, void* output, size_t count, dtrain_type type) {
  return Blocking("dtrain_allgather", [&](const Place& place) {
    return CheckedAllgather(place, input, output, count, type);
  });
}

dtrain_status dtrain_reduce_scatter(const void* input, void* output, size_t count, dtrain_type type,
                                    dtrain_op op) {
  return Blocking("dtrain_reduce_scatter", [&](const Place& place) {
    return CheckedReduceScatter(place, input, output, count, type, op);
  });
}

dtrain_status dtrain_alltoall(const void* input, void* output, size_t count, dtrain_type type) {
  return Blocking("dtrain_alltoall", [&](const Place& place) {
    return CheckedAlltoall(place, input, output, count, type);
  });
}

dtrain_status dtrain_reduce(const void* input, void* output, size_t count, dtrain_type type,
                            dtrain_op op, int root) {
  return Blocking("dtrain_reduce", [&](const Place& place) {
    return CheckedReduce(place, input, output, count, type, op, root);
  });
}

dtrain_status dtrain_barrier_async(const dtrain_options* options, dtrain_handle* handle) {
  return Asynchronous("dtrain_barrier_async", options, handle, BarrierAt);
}

dtrain_status dtrain_allreduce_async(const void* input, void* output, size_t count,
                                     dtrain_type type, dtrain_op op, const dtrain_options* options,
                                     dtrain_handle* handle) {
  return Asynchronous("dtrain_allreduce_async", options, handle, [&](const Place& place) {
    return CheckedAllreduce(place, input, output, count, type, op);
  });
}

dtrain_status dtrain_broadcast_async(void* buffer, size_t count, dtrain_type type, int root,
                                     const dtrain_options* options, dtrain_handle* handle) {
  return Asynchronous("dtrain_broadcast_async", options, handle, [&](const Place& place) {
    return CheckedBroadcast(place, buffer, count, type, root);
  });
}

dtrain_status dtrain_allgather_async(const void* input, void* output, size_t count,
                                     dtrain_type type, const dtrain_options* options,
                                     dtrain_handle* handle) {
  return Asynchronous("dtrain_allgather_async", options, handle, [&](const Place& place) {
    return CheckedAllgather(place, input, output, count, type);
  });
}

dtrain_status dtrain_reduce_scatter_async(const void* input, void* output, size_t count,
                                          dtrain_type type, dtrain_op op,
                                          const dtrain_options* options, dtrain_handle* handle) {
  return Asynchronous("dtrain_reduce_scatter_async", options, handle, [&](const Place& place) {
    return CheckedReduceScatter(place, input, output, count, type, op);
  });
}

dtrain_status dtrain_alltoall_async(const void* input, void* output, size_t count, dtrain_type type,
                                    const dtrain_options* options, dtrain_handle* handle) {
  return Asynchronous("dtrain_alltoall_async", options, handle, [&](const Place& place) {
    return CheckedAlltoall(place, input, output, count, type);
  });
}

dtrain_status dtrain_allgatherv_async(const void* input, uint64_t rows, size_t length,
                                      dtrain_type type, dtrain_allocate allocate, void* context,
                                      const dtrain_options* options, dtrain_handle* handle) {
  return Asynchronous("dtrain_allgatherv_async", options, handle, [&](const Place& place) {
    return CheckedRows(place, Collective::Kind::kAllgather, input, &rows, length, type, allocate,
                       context);
  });
}

dtrain_status dtrain_alltoallv_async(const void* input, const uint64_t* rows, size_t length,
                                     dtrain_type type, dtrain_allocate allocate, void* context,
                                     const dtrain_options* options, dtrain_handle* handle) {
  return Asynchronous("dtrain_alltoallv_async", options, handle, [&](const Place& place) {
    return CheckedRows(place, Collective::Kind::kAlltoall, input, rows, length, type, allocate,
                       context);
  });
}

dtrain_status dtrain_reduce_async(const void* input, void* output, size_t count, dtrain_type type,
                                  dtrain_op op, int root, const dtrain_options* options,
                                  dtrain_handle* handle) {
  return Asynchronous("dtrain_reduce_async", options, handle, [&](const Place& place) {
    return CheckedReduce(place, input, output, count, type, op, root);
  });
}

dtrain_status dtrain_wait(dtrain_handle handle) {
  return CallBeside("dtrain_wait", [&](Process& process) -> MaybeError {
    if (MaybeError error = RequireJoined(process)) return error;
    return process.job->Wait(handle);
  });
}

dtrain_status dtrain_test(dtrain_handle handle, int* done) {
  return CallBeside("dtrain_test", [&](Process& process) -> MaybeError {
    if (done == nullptr) return Error{DTRAIN_ERROR_INVALID_ARGUMENT, "done is NULL"};
    *done = 0;
    if (MaybeError error = RequireJoined(process)) return error;
    bool is_done = false;
    MaybeError error = process.job->Test(handle, is_done);
    *done = is_done ? 1 : 0;
    return error;
  });
}

dtrain_status dtrain_join(int* last) {
  return Call("dtrain_join", [&](Process& process) -> MaybeError {
    if (last != nullptr) *last = -1;
    if (MaybeError error = RequireJoined(process)) return error;
    auto came_last = process.job->AwaitAllJoined();
    if (!came_last.ok()) return came_last.error();
    if (last != nullptr) *last = *came_last;
    return std::nullopt;
  });
}

dtrain_status dtrain_group_create(int color, int key, dtrain_group* group) {
  std::shared_ptr<Job::NewGroup> begun;
  const auto begin = [&](Process& process) -> MaybeError {
    if (group == nullptr) return Error{DTRAIN_ERROR_INVALID_ARGUMENT, "group is NULL"};
    *group = nullptr;
    if (MaybeError error = RequireJoined(process)) return error;
    auto started = process.job->StartGroup(color, key);
    if (!started.ok()) return started.error();
    begun = std::move(*started);
    return std::nullopt;
  };
  const auto wait = [&](Process& process) -> MaybeError {
    auto id = process.job->AwaitGroup(*begun);
    if (!id.ok()) return id.error();
    *group = reinterpret_cast<dtrain_group>(static_cast<uintptr_t>(*id));
    return std::nullopt;
  };
  return CallToMake("dtrain_group_create", begin, wait);
}

dtrain_status dtrain_group_free(dtrain_group group) {
  return Call("dtrain_group_free", [&](Process& process) -> MaybeError {
    if (MaybeError error = RequireJoined(process)) return error;
    return process.job->FreeGroup(IdOf(group));
  });
}

dtrain_status dtrain_group_set_timeout(dtrain_group group, int64_t timeout_ms) {
  return Call("dtrain_group_set_timeout", [&](Process& process) -> MaybeError {
    if (MaybeError error = RequireJoined(process)) return error;
    if (timeout_ms < 0) return Error{DTRAIN_ERROR_INVALID_ARGUMENT, "timeout_ms is negative"};
    return process.job->SetTimeout(IdOf(group), std::chrono::milliseconds(timeout_ms));
  });
}

int dtrain_group_rank(dtrain_group group) {
  return ReadGroup(group, [](const Group& found) { return found.rank; });
}
int dtrain_group_size(dtrain_group group) {
  return ReadGroup(group, [](const Group& found) { return found.size; });
}

void dtrain_mark_begin(const char* name) {
  if (HasTimeline(TheProcess())) BeginMark(name);
}
void dtrain_mark_end(void) {
  if (HasTimeline(TheProcess())) EndMark(TheProcess().page);
}

const char* dtrain_last_error(void) { return LastError(); }

const char* dtrain_status_name(dtrain_status status) {
  switch (status) {
    case DTRAIN_OK:
      return "DTRAIN_OK";
    case DTRAIN_ERROR_INVALID_ARGUMENT:
      return "DTRAIN_ERROR_INVALID_ARGUMENT";
    case DTRAIN_ERROR_STATE:
      return "DTRAIN_ERROR_STATE";
    case DTRAIN_ERROR_UNSUPPORTED:
      return "DTRAIN_ERROR_UNSUPPORTED";
    case DTRAIN_ERROR_ENVIRONMENT:
      return "DTRAIN_ERROR_ENVIRONMENT";
    case DTRAIN_ERROR_LAUNCHER:
      return "DTRAIN_ERROR_LAUNCHER";
    case DTRAIN_ERROR_NETWORK:
      return "DTRAIN_ERROR_NETWORK";
    case DTRAIN_ERROR_TIMEOUT:
      return "DTRAIN_ERROR_TIMEOUT";
    case DTRAIN_ERROR_BUSY:
      return "DTRAIN_ERROR_BUSY";
    case DTRAIN_ERROR_RESOURCES:
      return "DTRAIN_ERROR_RESOURCES";
    case DTRAIN_ERROR_INTERNAL:
      return "DTRAIN_ERROR_INTERNAL";
    case DTRAIN_ERROR_MISMATCH:
      return "DTRAIN_ERROR_MISMATCH";
    case DTRAIN_ERROR_DEVICE:
      return "DTRAIN_ERROR_DEVICE";
  }
  return "unknown status";
}

const char* dtrain_version(void) { return DTRAIN_VERSION; }

}  // extern "C"
