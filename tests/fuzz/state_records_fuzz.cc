// SPDX-License-Identifier: Apache-2.0
// What an agent finds in its state directory: a job's record and the GPUs that are withheld. Kept
// in memory, as the fuzzer's own folder.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "agent/session/job_directory.h"
#include "agent/session/withheld_gpus.h"
#include "agent/spawn/job_id.h"
#include "common/os/unique_fd.h"
#include "tests/fuzz/expect.h"

namespace {

class Folder {
 public:
  Folder() {
    char path[] = "/dev/shm/dtrain-fuzz-XXXXXX";
    DTRAIN_CHECK(mkdtemp(path) != nullptr);
    path_ = path;
    DTRAIN_CHECK(mkdir((path_ + "/jobs").c_str(), 0700) == 0);
    DTRAIN_CHECK(mkdir(job().c_str(), 0700) == 0);
  }
  ~Folder() {
    for (const char* file : {"/jobs/job.0/record", "/withheld"})
      (void)unlink((path_ + file).c_str());
    for (const char* folder : {"/jobs/job.0", "/jobs", ""}) (void)rmdir((path_ + folder).c_str());
  }
  const std::string& path() const { return path_; }
  std::string job() const { return path_ + "/jobs/job.0"; }

 private:
  std::string path_;
};

void Write(const std::string& path, absl::string_view bytes) {
  dtrain::os::UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  DTRAIN_CHECK(fd.get() >= 0);
  DTRAIN_CHECK(write(fd.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Folder folder;
  const absl::string_view bytes = dtrain::fuzz::Text(data, size);
  Write(folder.job() + "/record", bytes);
  Write(folder.path() + "/withheld", bytes);
  const auto jobs = dtrain::session::JobDirectory::List(folder.path());
  DTRAIN_CHECK(jobs.size() == 1);
  const auto record = jobs.front().Read();
  DTRAIN_CHECK(!record.ok() || dtrain::spawn::IsPlainJobId(record->job_id()));
  const auto withheld = dtrain::session::ReadWithheld(folder.path());
  if (!withheld.ok()) dtrain::fuzz::ExpectPrintable(withheld.status());
  return 0;
}
