// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtrain/v1/journal.pb.h"

// What jobs are called, by people and by the file system.

namespace dtrain::detached {

// Whether it can be the name of a file or folder, and cannot be taken for a flag.
bool IsWord(absl::string_view text);
// INVALID_ARGUMENT otherwise, about `what`.
absl::Status CheckWord(absl::string_view what, absl::string_view text);

// Whether `text` is the id or the beginning of it, which may lack "dtrain-".
bool BeginsWith(absl::string_view id, absl::string_view text);
// INVALID_ARGUMENT, with the ids: several of them begin with `text`, or it is too short to be more
// than a guess.
absl::Status CheckBeginning(absl::string_view text, std::vector<std::string> ids);

// The id of the job that `text` means: the whole id; the name of a running job, or of the one that
// ended last; the beginning of an id. NOT_FOUND, or as CheckBeginning.
absl::StatusOr<std::string> ChooseJob(absl::Span<const v1::JobEntry> jobs, absl::string_view text);

// What is in a folder, in no order; nothing if it is missing. UNAVAILABLE: it cannot be read.
absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& folder);

// Jobs that have ended, in one file, so that listing thousands does not open thousands. Only a
// shortcut: it is made again from the jobs' folders where it is missing or damaged.
struct JobIndex {
  std::unordered_map<std::string, v1::JobEntry> ended;  // by id
  bool stale = false;                                   // the file says something else

  // What is readable of it.
  static JobIndex Read(const std::string& file);
  // Without a lock: what another process adds meanwhile, and this loses, is found again by whoever
  // lists the folders next. So is all of it if it cannot be written.
  void Write(const std::string& file) const;
};

}  // namespace dtrain::detached
