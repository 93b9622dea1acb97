// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/os/append_file.h"
#include "common/os/file_lock.h"
#include "launcher/detached/job_folder.h"

// The folder of a job that goes to another machine.
namespace dtrain::detached {

// A file in it. The spec is none of them: it goes ahead, and the new folder is made from it.
struct Baggage {
  std::string name;  // as seen from the folder
  uint64_t size = 0;
  // It only grows, and what is written stays as it is. Others may be replaced.
  bool grows = false;
};
// In a fixed order. Of output of removed attempts there is nothing.
absl::StatusOr<std::vector<Baggage>> ListBaggage(const JobFolder& job);
// Whether a file of that name can be among them. Pure.
bool IsBaggage(absl::string_view name);
// Up to `limit` bytes from `offset` on; fewer at the end.
absl::StatusOr<std::string> ReadBaggage(const JobFolder& job, absl::string_view name,
                                        uint64_t offset, size_t limit);

// What has come of it so far, where it goes: in PLACE/incoming/JOB (Jobs::Prepare), where nobody
// takes it for a job. Gone with this, or, where that was killed, with the next one. Calls block.
class IncomingJob {
 public:
  // UNAVAILABLE: another process is receiving this job.
  static absl::StatusOr<IncomingJob> Begin(const std::string& place, const std::string& job_id);
  IncomingJob(IncomingJob&& other);
  IncomingJob& operator=(IncomingJob&&) = delete;
  ~IncomingJob();

  // INVALID_ARGUMENT: it is not what ListBaggage gives, or does not follow on what came before.
  absl::Status Write(const std::string& name, uint64_t offset, absl::string_view bytes);
  // All of it, synced. Then nothing is left here.
  absl::Status MoveInto(const JobFolder& draft);

 private:
  IncomingJob(JobFolder folder, os::FileLock lock)
      : folder_(std::move(folder)), lock_(std::move(lock)) {}
  absl::Status SyncLast();

  JobFolder folder_;
  os::FileLock lock_;
  std::string last_name_;
  std::optional<os::AppendFile> last_;  // that was written to
};

}  // namespace dtrain::detached
