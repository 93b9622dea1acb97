// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/os/file_lock.h"
#include "dtrain/v1/journal.pb.h"
#include "launcher/detached/journal_file.h"

namespace dtrain::detached {

// Called again and again by a call that may take long although the folder answers: after each
// answer, and while it waits for something else. A watch so knows that no file server is down.
using Beat = absl::FunctionRef<void()>;
inline void NoBeat() {}

// How far the launcher that has, or last had, a job has come with it.
struct Standing {
  enum class Stage {
    kOpens,   // it reads what the one before has left
    kHasJob,  // it is its launcher, on disk too
    kRuns,    // all workers run
  };
  v1::Launcher launcher = {};  // without a process id: there was none
  Stage stage = Stage::kOpens;
  std::string unit = {};  // of systemd, that starts it again; empty: none
};

// The folder of one detached job. Calls may block.
class JobFolder {
 public:
  explicit JobFolder(std::string path) : path_(std::move(path)) {}
  // Makes one. When this returns all of it is on disk but its own name.
  static absl::StatusOr<JobFolder> Make(const std::string& path, const v1::Spec& spec);

  const std::string& path() const { return path_; }
  std::string id() const;
  // Where the output of an attempt goes (LogSegments): each begins at byte 0.
  std::string LogFolder(uint32_t attempt) const;

  absl::StatusOr<v1::Spec> ReadSpec() const;
  // Of a folder that nobody can find yet, whose job has come so far without one.
  absl::Status BeginJournal(const v1::Spec& spec, const v1::JournalState& state) const;

  // With --stage, once the contents of the files are on disk.
  absl::Status WriteCode(const v1::StagedCode& code) const;
  absl::StatusOr<v1::StagedCode> ReadCode() const;  // NOT_FOUND: none was written
  std::string CodeContents() const;                 // where they are

  // Held by the launcher that controls the job, as long as it lives. UNAVAILABLE names the one that
  // holds it now.
  absl::StatusOr<os::FileLock> Lock(const v1::Launcher& self) const;
  // What others see of the holder.
  static void Describe(const Standing& self, os::FileLock& lock);
  // What the last one has written of itself, whether it lives or not, as far as it can be read.
  Standing LastStanding() const;
  // Who controls the job now, if anybody does. Fields that are not known are empty.
  absl::StatusOr<std::optional<v1::Launcher>> Holder() const;

  // Held by the process that starts the launcher again when it is killed. UNAVAILABLE: there is
  // one.
  absl::StatusOr<os::FileLock> LockAsMinder(const v1::Launcher& self) const;
  absl::StatusOr<std::optional<v1::Launcher>> Minder() const;

  // For the holder of the lock. DATA_LOSS: the journal is damaged, and the folder has been moved to
  // lost+found.
  absl::StatusOr<std::pair<JournalFile, journal::Contents>> OpenJournal() const;
  // For anybody: changes nothing.
  absl::StatusOr<journal::Contents> ReadJournal() const;

  // Has a job's launcher end the job. SIGTERM does not: who shuts a machine down sends it, too.
  static int StopSignal();

  // The job is over for anyone who waits for it. JSON with `exit_code`; all or nothing.
  absl::Status WriteSummary(absl::string_view json) const;
  absl::StatusOr<std::string> ReadSummary() const;
  bool HasSummary() const;
  // Nothing is left to do: there is a summary, and the journal, where it can be read, says so.
  bool IsSettled() const;
  // Removes what an ended job does not need: its environment, which may hold secrets, the contents
  // of its code, and the journal.
  absl::Status Settle() const;

  // As a list shows it.
  absl::StatusOr<v1::JobEntry> Entry() const;

 private:
  std::string File(absl::string_view name) const;
  absl::StatusOr<std::optional<v1::Launcher>> HolderOf(absl::string_view name) const;
  std::string path_;
};

}  // namespace dtrain::detached
