// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "dtrain/v1/journal.pb.h"

namespace dtrain::journal {

// Changes the state by one record. Which record may come in which phase of v1::JournalState:
//
//   record            in phase              then
//   accepted          new                   accepted
//   generation_taken  accepted … concluded  -          a higher one than before
//   attempt_begins    accepted, restarting  begun      unless the job was told to end
//   attempt_runs      begun                 runs
//   restart_decided   begun, runs           restarting unless the job was told to end
//   stop_asked, time_limit  accepted … concluded  -    the first of them counts
//   output_lost       accepted … concluded  -
//   node_fact, logs_safe    begun … concluded     -    of the last attempt; of each kind the first
//   counts verdict           accepted … restarting concluded hook_begins, hook_ends  concluded -
//   ended             concluded             ended
//   snapshot          new                   its own
//
// INVALID_ARGUMENT says what is out of order; nothing has changed then. Pure.
absl::Status Apply(const v1::JournalRecord& record, v1::JournalState& state);

// The record from which Apply makes the same state.
v1::JournalRecord Snapshot(const v1::JournalState& state);

}  // namespace dtrain::journal
