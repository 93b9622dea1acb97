// SPDX-License-Identifier: Apache-2.0
#include "launcher/detached/baggage.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <set>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/clock.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"
#include "common/os/private_file.h"
#include "common/os/unique_fd.h"
#include "launcher/detached/ourselves.h"

namespace dtrain::detached {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kTopFiles[] = {"journal", "code", "code.contents", "launcher.log"};

constexpr Duration kPatience = std::chrono::seconds(10);

bool IsNumber(absl::string_view text) {
  uint64_t number;
  return !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit) &&
         absl::SimpleAtoi(text, &number);
}

// rank-00003.out.67108864
bool IsSegment(absl::string_view name) {
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '.');
  return parts.size() == 3 && absl::ConsumePrefix(&name, "rank-") && IsNumber(parts[0].substr(5)) &&
         (parts[1] == "out" || parts[1] == "err") && IsNumber(parts[2]);
}

absl::Status NotListed(const std::string& path, const std::error_code& error) {
  return absl::UnavailableError(absl::StrCat("list ", path, ": ", error.message()));
}

}  // namespace

bool IsBaggage(absl::string_view name) {
  if (std::find(std::begin(kTopFiles), std::end(kTopFiles), name) != std::end(kTopFiles)) {
    return true;
  }
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '/');
  return parts.size() == 3 && parts[0] == "logs" && IsNumber(parts[1]) && IsSegment(parts[2]);
}

absl::StatusOr<std::vector<Baggage>> ListBaggage(const JobFolder& job) {
  std::vector<Baggage> files;
  std::error_code failed;
  const auto add = [&](std::string name, bool grows) {
    std::error_code error;
    const fs::path path = fs::path(job.path()) / name;
    const uint64_t size = fs::file_size(path, error);
    // Old output is removed while a job runs, and not all jobs have all files.
    if (error && error != std::errc::no_such_file_or_directory) failed = error;
    if (!error) files.push_back({std::move(name), size, grows});
  };
  for (const absl::string_view name : kTopFiles) {
    add(std::string(name), name == "launcher.log" || name == "code.contents");
  }
  const std::string logs = job.path() + "/logs";
  std::error_code error;
  for (fs::recursive_directory_iterator it(logs, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = absl::StrCat("logs/", it->path().lexically_relative(logs).string());
    if (IsBaggage(name)) add(name, /*grows=*/true);
  }
  if (error && error != std::errc::no_such_file_or_directory) return NotListed(logs, error);
  if (failed) return NotListed(job.path(), failed);
  std::sort(files.begin(), files.end(),
            [](const Baggage& a, const Baggage& b) { return a.name < b.name; });
  return files;
}

absl::StatusOr<std::string> ReadBaggage(const JobFolder& job, absl::string_view name,
                                        uint64_t offset, size_t limit) {
  const std::string path = absl::StrCat(job.path(), "/", name);
  const os::UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file) return PosixError(errno, absl::StrCat("open ", path));
  std::string bytes(limit, '\0');
  size_t done = 0;
  while (done < limit) {
    const ssize_t n =
        pread(file.get(), bytes.data() + done, limit - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return PosixError(errno, absl::StrCat("read ", path));
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  bytes.resize(done);
  return bytes;
}

absl::StatusOr<IncomingJob> IncomingJob::Begin(const std::string& place,
                                               const std::string& job_id) {
  const std::string incoming = place + "/incoming";
  const JobFolder folder(absl::StrCat(incoming, "/", job_id));
  // Nobody else begins, or sweeps, meanwhile.
  const auto all = os::FileLock::Take(place + "/lock", "", kPatience);
  if (!all.ok()) return all.status();
  absl::Status made = os::MakeOwnDirectory(incoming, 0700, 0700);
  if (made.ok()) made = os::MakeOwnDirectory(folder.path(), 0700, 0700);
  if (!made.ok()) return made;
  auto lock = folder.Lock(Ourselves());
  if (absl::IsUnavailable(lock.status())) {
    return absl::UnavailableError(
        absl::StrCat("another process is receiving ", job_id, " in ", incoming, " already"));
  }
  if (!lock.ok()) return lock.status();
  // What others have left that were killed; of this job, all but the lock.
  std::error_code error;
  for (const absl::string_view name : kTopFiles) {
    fs::remove(absl::StrCat(folder.path(), "/", name), error);
  }
  fs::remove_all(folder.path() + "/logs", error);
  for (fs::directory_iterator it(incoming, error), end; !error && it != end; it.increment(error)) {
    const auto holder = JobFolder(it->path().string()).Holder();
    std::error_code not_removed;
    if (holder.ok() && !*holder) fs::remove_all(it->path(), not_removed);
  }
  return IncomingJob(folder, *std::move(lock));
}

IncomingJob::IncomingJob(IncomingJob&& other)
    : folder_(std::exchange(other.folder_, JobFolder(""))),
      lock_(std::move(other.lock_)),
      last_name_(std::move(other.last_name_)),
      last_(std::move(other.last_)) {}

IncomingJob::~IncomingJob() {
  std::error_code error;
  if (!folder_.path().empty()) fs::remove_all(folder_.path(), error);
}

absl::Status IncomingJob::SyncLast() {
  if (!last_) return absl::OkStatus();
  absl::Status synced = last_->Sync();
  last_.reset();
  last_name_.clear();
  return synced;
}

absl::Status IncomingJob::Write(const std::string& name, uint64_t offset, absl::string_view bytes) {
  if (!IsBaggage(name)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", Escape(name), "\" is not a file of a job"));
  }
  const std::string path = absl::StrCat(folder_.path(), "/", name);
  if (name != last_name_ || offset == 0) {
    if (absl::Status synced = SyncLast(); !synced.ok()) return synced;
    std::error_code error;
    fs::create_directories(fs::path(path).parent_path(), error);
    if (offset == 0) fs::remove(path, error);
    auto file = offset == 0 ? os::AppendFile::Create(path) : os::AppendFile::Open(path);
    if (!file.ok()) return file.status();
    last_ = *std::move(file);
    last_name_ = name;
  }
  if (last_->size() != offset) {
    return absl::InvalidArgumentError(absl::StrCat("a piece of ", name, " from byte ", offset,
                                                   " on does not follow on ", last_->size(),
                                                   " bytes"));
  }
  return last_->Append(bytes);
}

absl::Status IncomingJob::MoveInto(const JobFolder& draft) {
  if (absl::Status synced = SyncLast(); !synced.ok()) return synced;
  const auto files = ListBaggage(folder_);
  if (!files.ok()) return files.status();
  std::set<std::string> folders = {draft.path(), draft.path() + "/logs"};
  for (const Baggage& file : *files) {
    const std::string to = absl::StrCat(draft.path(), "/", file.name);
    const std::string folder = fs::path(to).parent_path().string();
    std::error_code error;
    if (!fs::exists(folder, error)) {
      if (absl::Status made = os::MakeOwnDirectory(folder, 0700, 0700); !made.ok()) return made;
    }
    absl::Status moved = os::Rename(absl::StrCat(folder_.path(), "/", file.name), to);
    if (!moved.ok()) return moved;
    folders.insert(folder);
  }
  for (const std::string& folder : folders) {
    if (absl::Status synced = os::SyncFolder(folder); !synced.ok()) return synced;
  }
  return absl::OkStatus();
}

}  // namespace dtrain::detached
