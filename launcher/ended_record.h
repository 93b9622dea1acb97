// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "dtrain/v1/journal.pb.h"
#include "launcher/cli/options.h"
#include "launcher/detached/log_store.h"
#include "launcher/status/log_tails.h"

namespace dtrain {

// What stays of a job that ends where it was launched, for dtrain history, show, rerun and logs: a
// folder as a detached job leaves one, with the last of its output. It is made when the job has
// ended, so that a launch waits for no disk (ADR 57).
class EndedRecord {
 public:
  struct Job {
    const cli::LaunchOptions& options;
    int64_t begin_unix_nanos = 0;
    uint32_t attempt = 0;             // the last
    std::optional<Rank> failed = {};  // the first rank that failed
    std::string summary;              // JSON
    const status::LogTails* output = nullptr;
  };
  explicit EndedRecord(const Job& job);

  // Any thread. Blocks for as long as the folder's disk likes.
  absl::Status Write() const;

 private:
  v1::Spec spec_;
  uint32_t attempt_;
  std::string summary_;
  std::vector<detached::LogStore::Piece> output_;
  std::string times_;
};

}  // namespace dtrain
