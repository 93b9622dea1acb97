// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "dtrain/v1/journal.pb.h"
#include "dtrain/v1/migration.pb.h"

namespace dtrain::detached {

// Notes about jobs that went to another machine, a file for each, for 30 days. Calls may block.
class MovedJobs {
 public:
  explicit MovedJobs(std::string folder) : folder_(std::move(folder)) {}

  std::vector<v1::MovedJob> All() const;
  // That the job went to `host`, now. Removes notes that are too old.
  absl::Status Note(const v1::Spec& spec, const std::string& host) const;
  void Forget(const std::string& job_id) const;
  // What to tell of a job that went; empty: it did not.
  std::string WhereItWent(const std::string& job_id) const;

 private:
  std::string Path(absl::string_view job_id) const;

  std::string folder_;
};

// What to tell of it: where it is, and since when.
std::string WentTo(const v1::MovedJob& job);

}  // namespace dtrain::detached
