// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtrain/v1/journal.pb.h"

// A job's journal as bytes. Records are written in batches, each synced as a whole. The first frame
// of each batch is marked: all before it had been synced when it was written. So a reader can tell
// what a crash has left of the last batch, and may be cut, from damage to what was on disk. Pure.
namespace dtrain::journal {

inline constexpr uint32_t kVersion = 1;

// First record of a journal.
v1::JournalRecord Header(absl::string_view job_id, absl::string_view build);

// Whether it can be read again once it is written. RESOURCE_EXHAUSTED: it is longer than a frame
// may be. INVALID_ARGUMENT: it has no kind, or a name that is not UTF-8, which cannot be parsed.
absl::Status CheckRecord(const v1::JournalRecord& record);

// RESOURCE_EXHAUSTED: it is longer than a frame may be, and nothing is appended.
absl::Status AppendRecord(const v1::JournalRecord& record, bool begins_batch, std::string* out);

struct Contents {
  v1::JournalHeader header;
  v1::JournalState state;
  size_t records = 0;     // without the header
  size_t good_bytes = 0;  // behind them is a torn tail, to be cut before anything is appended
  size_t unknown = 0;     // records of a newer version: ignored, and not to be lost by compaction
  std::vector<std::string> warnings;
};

// Replays a whole journal. DATA_LOSS: it is damaged before its tail, or its records are in no legal
// order. FAILED_PRECONDITION: a newer version has written it.
absl::StatusOr<Contents> Read(absl::string_view bytes);

}  // namespace dtrain::journal
