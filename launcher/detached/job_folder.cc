// SPDX-License-Identifier: Apache-2.0
#include "launcher/detached/job_folder.h"

#include <signal.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/text.h"
#include "common/os/append_file.h"
#include "common/os/fd.h"
#include "common/os/private_file.h"
#include "launcher/journal/records.h"
#include "launcher/journal/replay.h"

namespace dtrain::detached {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr size_t kMostSpec = 64 << 20;
constexpr size_t kMostCode = 64 << 20;
constexpr size_t kMostSummary = 1 << 30;

constexpr const char* kStages[] = {"opens", "has the job", "runs"};

// For people, too.
std::string DescriptionOf(const Standing& standing) {
  const v1::Launcher& launcher = standing.launcher;
  const Json json = {{"generation", launcher.generation()},
                     {"host", launcher.host()},
                     {"boot_id", launcher.boot_id()},
                     {"pid", launcher.pid()},
                     {"start_time", launcher.start_time()},
                     {"unix_nanos", launcher.unix_nanos()},
                     {"stage", kStages[static_cast<int>(standing.stage)]},
                     {"unit", standing.unit}};
  return absl::StrCat(json.dump(-1, ' ', false, Json::error_handler_t::replace), "\n");
}

// As far as it can be read: the holder may be writing it.
Standing ParseDescription(const std::string& text) {
  Standing standing;
  v1::Launcher& launcher = standing.launcher;
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return standing;
  const auto text_of = [&json](const char* key) {
    const auto at = json.find(key);
    return at != json.end() && at->is_string() ? at->get<std::string>() : std::string();
  };
  const auto number_of = [&json](const char* key) {
    const auto at = json.find(key);
    return at != json.end() && at->is_number_integer() ? at->get<int64_t>() : 0;
  };
  launcher.set_generation(static_cast<uint64_t>(number_of("generation")));
  launcher.set_host(text_of("host"));
  launcher.set_boot_id(text_of("boot_id"));
  launcher.set_pid(static_cast<uint32_t>(number_of("pid")));
  launcher.set_start_time(static_cast<uint64_t>(number_of("start_time")));
  launcher.set_unix_nanos(number_of("unix_nanos"));
  standing.unit = text_of("unit");
  const std::string stage = text_of("stage");
  for (const auto known : {Standing::Stage::kHasJob, Standing::Stage::kRuns}) {
    if (stage == kStages[static_cast<int>(known)]) standing.stage = known;
  }
  return standing;
}

std::string NameOf(const v1::Launcher& launcher) {
  if (launcher.pid() == 0) return "another launcher";
  return absl::StrCat(
      "the launcher with process id ", launcher.pid(), " on ", Escape(launcher.host()), ", since ",
      absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixNanos(launcher.unix_nanos()),
                       absl::LocalTimeZone()));
}

int64_t ModifiedUnixNanos(const std::string& path) {
  std::error_code error;
  const auto when = std::chrono::file_clock::to_sys(fs::last_write_time(path, error));
  return error ? 0
               : std::chrono::duration_cast<std::chrono::nanoseconds>(when.time_since_epoch())
                     .count();
}

uint64_t BytesIn(const std::string& path) {
  uint64_t bytes = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator it(path, error), end; !error && it != end;
       it.increment(error)) {
    std::error_code not_a_file;
    const uint64_t size = it->file_size(not_a_file);
    if (!not_a_file) bytes += size;
  }
  return bytes;
}

}  // namespace

absl::StatusOr<JobFolder> JobFolder::Make(const std::string& path, const v1::Spec& spec) {
  JobFolder folder(path);
  absl::Status made = os::MakeOwnDirectory(path, 0700, 0700);
  if (made.ok()) made = os::MakeOwnDirectory(folder.File("logs"), 0700, 0700);
  if (made.ok()) made = os::ReplaceFile(folder.File("spec"), spec.SerializeAsString());
  v1::Accepted accepted;
  *accepted.mutable_by() = spec.accepted_by();
  if (made.ok()) {
    made = JournalFile::Create(folder.File("journal"), spec.job_id(), spec.build(), accepted);
  }
  if (made.ok()) made = os::SyncFolder(path);
  if (!made.ok()) return made;
  return folder;
}

std::string JobFolder::File(absl::string_view name) const { return absl::StrCat(path_, "/", name); }

std::string JobFolder::id() const { return fs::path(path_).filename(); }

std::string JobFolder::LogFolder(uint32_t attempt) const {
  return absl::StrCat(path_, "/logs/", attempt);
}

// On a file system in user space (FUSE, as sshfs) one that is being replaced may look like none for
// a moment: Settle() does that, as others read how the job has ended.
absl::StatusOr<v1::Spec> JobFolder::ReadSpec() const {
  auto bytes = os::ReadSmallFile(File("spec"), kMostSpec);
  if (absl::IsNotFound(bytes.status())) bytes = os::ReadSmallFile(File("spec"), kMostSpec);
  if (!bytes.ok()) return bytes.status();
  v1::Spec spec;
  if (spec.ParseFromString(*bytes) && spec.job_id() == id()) return spec;
  return absl::DataLossError(absl::StrCat(File("spec"), " is damaged"));
}

absl::Status JobFolder::BeginJournal(const v1::Spec& spec, const v1::JournalState& state) const {
  std::string frames;
  absl::Status status = journal::AppendRecord(journal::Header(spec.job_id(), spec.build()),
                                              /*begins_batch=*/true, &frames);
  if (status.ok()) {
    status = journal::AppendRecord(journal::Snapshot(state), /*begins_batch=*/false, &frames);
  }
  return status.ok() ? os::ReplaceFile(File("journal"), frames) : status;
}

absl::Status JobFolder::WriteCode(const v1::StagedCode& code) const {
  return os::ReplaceFile(File("code"), code.SerializeAsString());
}

absl::StatusOr<v1::StagedCode> JobFolder::ReadCode() const {
  const auto bytes = os::ReadSmallFile(File("code"), kMostCode);
  if (!bytes.ok()) return bytes.status();
  v1::StagedCode code;
  if (code.ParseFromString(*bytes)) return code;
  return absl::DataLossError(absl::StrCat(File("code"), " is damaged"));
}

std::string JobFolder::CodeContents() const { return File("code.contents"); }

absl::StatusOr<os::FileLock> JobFolder::Lock(const v1::Launcher& self) const {
  auto lock = os::FileLock::Take(File("lock"), DescriptionOf({self}));
  if (lock.ok() || !absl::IsUnavailable(lock.status())) return lock;
  const auto holder = Holder();
  return absl::UnavailableError(
      absl::StrCat("job ", id(), " is controlled by ",
                   NameOf(holder.ok() && *holder ? **holder : v1::Launcher())));
}

void JobFolder::Describe(const Standing& self, os::FileLock& lock) {
  lock.Describe(DescriptionOf(self));
}

Standing JobFolder::LastStanding() const {
  const auto text = os::ReadSmallFile(File("lock"));
  return ParseDescription(text.ok() ? *text : "");
}

absl::StatusOr<std::optional<v1::Launcher>> JobFolder::HolderOf(absl::string_view name) const {
  const auto held = os::FileLock::IsHeld(File(name));
  if (!held.ok()) return held.status();
  if (!*held) return std::nullopt;
  const auto text = os::ReadSmallFile(File(name));
  return ParseDescription(text.ok() ? *text : "").launcher;
}

absl::StatusOr<std::optional<v1::Launcher>> JobFolder::Holder() const { return HolderOf("lock"); }

absl::StatusOr<os::FileLock> JobFolder::LockAsMinder(const v1::Launcher& self) const {
  return os::FileLock::Take(File("minder"), DescriptionOf({self}));
}

absl::StatusOr<std::optional<v1::Launcher>> JobFolder::Minder() const { return HolderOf("minder"); }

absl::StatusOr<std::pair<JournalFile, journal::Contents>> JobFolder::OpenJournal() const {
  auto opened = JournalFile::Open(File("journal"));
  if (opened.ok() && opened->second.header.job_id() != id()) {
    opened = absl::DataLossError(
        absl::StrCat(File("journal"), " is that of job ", Escape(opened->second.header.job_id())));
  }
  if (!absl::IsDataLoss(opened.status())) return opened;
  // Beside the folder with all jobs.
  const fs::path jobs = fs::path(path_).parent_path();
  const std::string lost = (jobs.parent_path() / "lost+found").string();
  std::string place = absl::StrCat(lost, "/", id());
  absl::Status moved = os::MakeOwnDirectory(lost, 0700, 0700);
  std::error_code error;
  if (fs::exists(place, error)) absl::StrAppend(&place, ".", os::RandomHex(4));
  if (moved.ok()) moved = os::Rename(path_, place);
  if (moved.ok()) moved = os::SyncFolder(lost);
  if (moved.ok()) moved = os::SyncFolder(jobs.string());
  return absl::DataLossError(absl::StrCat(
      opened.status().message(), "; job ", id(), " cannot be controlled any more, and ",
      moved.ok() ? absl::StrCat("its folder is now ", place)
                 : absl::StrCat("its folder cannot be moved to lost+found: ", moved.message()),
      ". Its workers end by themselves when no launcher has been heard for --away"));
}

absl::StatusOr<journal::Contents> JobFolder::ReadJournal() const {
  return JournalFile::Read(File("journal"));
}

int JobFolder::StopSignal() { return SIGRTMIN; }

absl::Status JobFolder::WriteSummary(absl::string_view json) const {
  return os::ReplaceFile(File("summary.json"), json);
}

absl::StatusOr<std::string> JobFolder::ReadSummary() const {
  return os::ReadSmallFile(File("summary.json"), kMostSummary);
}

bool JobFolder::HasSummary() const {
  std::error_code error;
  return fs::exists(File("summary.json"), error);
}

bool JobFolder::IsSettled() const {
  if (!HasSummary()) return false;
  const auto journal = ReadJournal();
  if (journal.ok()) return journal->state.phase() == v1::JournalState::PHASE_ENDED;
  return absl::IsNotFound(journal.status()) || absl::IsDataLoss(journal.status());
}

absl::Status JobFolder::Settle() const {
  auto spec = ReadSpec();
  if (spec.ok() && spec->environment_size() > 0) {
    spec->clear_environment();
    absl::Status written = os::ReplaceFile(File("spec"), spec->SerializeAsString());
    if (!written.ok()) return written;
  }
  std::error_code error;
  fs::remove(CodeContents(), error);
  fs::remove(File("stop"), error);
  fs::remove(File("journal"), error);
  return absl::OkStatus();
}

absl::StatusOr<v1::JobEntry> JobFolder::Entry() const {
  const auto spec = ReadSpec();
  if (!spec.ok()) return spec.status();
  v1::JobEntry entry;
  entry.set_job_id(id());
  entry.set_name(spec->name());
  entry.set_key(spec->key());
  entry.set_accepted_unix_nanos(spec->accepted_by().unix_nanos());
  entry.set_keep(spec->keep());
  entry.set_foreground(spec->foreground());
  if (!HasSummary()) return entry;
  entry.set_ended_unix_nanos(ModifiedUnixNanos(File("summary.json")));
  entry.set_exit_code(-1);
  entry.set_bytes(BytesIn(path_));
  const auto summary = ReadSummary();
  if (!summary.ok()) return entry;
  const Json json = Json::parse(*summary, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return entry;
  const auto code = json.find("exit_code");
  if (code != json.end() && code->is_number_integer()) entry.set_exit_code(code->get<int32_t>());
  return entry;
}

}  // namespace dtrain::detached
