// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "runtime/base/collective.h"
#include "runtime/base/result.h"
#include "runtime/engine/operation.h"

namespace dtrain::runtime {

// A group is its number to the outside: a stale one is found out, whatever it once pointed to.
uint32_t IdOf(dtrain_group group);

// A rank's place in the group that it calls a collective on.
struct Place {
  int rank = 0;
  int size = 1;
};

// The collectives that callers ask for, from arguments that may be anything.
Result<Collective> CheckedAllreduce(const Place& place, const void* input, void* output,
                                    size_t count, dtrain_type type, dtrain_op op);
Result<Collective> CheckedBroadcast(const Place& place, void* buffer, size_t count,
                                    dtrain_type type, int root);
Result<Collective> CheckedAllgather(const Place& place, const void* input, void* output,
                                    size_t count, dtrain_type type);
Result<Collective> CheckedReduceScatter(const Place& place, const void* input, void* output,
                                        size_t count, dtrain_type type, dtrain_op op);
Result<Collective> CheckedAlltoall(const Place& place, const void* input, void* output,
                                   size_t count, dtrain_type type);
Result<Collective> CheckedReduce(const Place& place, const void* input, void* output, size_t count,
                                 dtrain_type type, dtrain_op op, int root);
// `kind`: an all-gather, with one number of rows, or an all-to-all, with one for each rank. Its
// `what` has no rows yet.
Result<Operation> CheckedRows(const Place& place, Collective::Kind kind, const void* input,
                              const uint64_t* rows, size_t length, dtrain_type type,
                              dtrain_allocate allocate, void* context);

// A structure of the caller's that may be of an older or newer version than ours: what we do not
// know must be unset. False when it is not so. `given` begins with its own size.
bool CopyKnown(const void* given, void* ours, size_t our_size);

}  // namespace dtrain::runtime
