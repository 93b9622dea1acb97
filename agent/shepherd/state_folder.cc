// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/state_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"
#include "common/os/bounded_look.h"
#include "common/os/unique_fd.h"

namespace dtrain::shepherd {
namespace {

constexpr char kJobPrefix[] = "dtrain-";  // of the ids of all jobs
constexpr char kFilePrefix[] = "state-";
// A worker can fill the folder with anything, and the job's end must not wait for that.
constexpr size_t kMostEntries = 10000;

bool IsPlainComponent(absl::string_view name) {
  return !name.empty() && name.size() <= 200 && name[0] != '.' && !absl::StrContains(name, '/') &&
         !absl::StrContains(name, '\0');
}

// A folder of ours, no link.
absl::StatusOr<os::UniqueFd> OpenStateFolder(int parent, const std::string& name,
                                             absl::string_view path, struct stat* info) {
  os::UniqueFd folder(
      openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder) return PosixError(errno, absl::StrCat("open the folder ", Escape(path)));
  if (fstat(folder.get(), info) != 0) return PosixError(errno, absl::StrCat("look at ", path));
  if (info->st_uid == geteuid()) return folder;
  return absl::PermissionDeniedError(absl::StrCat("use the folder ", Escape(path),
                                                  ": it belongs to the user with the id ",
                                                  info->st_uid, "; choose another --state-dir"));
}

std::vector<std::string> StateNames(int folder, absl::string_view prefix) {
  std::vector<std::string> names;
  os::UniqueFd again(openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!again) return names;
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(fdopendir(again.get()), closedir);
  if (listing == nullptr) return names;
  (void)again.Release();
  while (const dirent* entry = names.size() < kMostEntries ? readdir(listing.get()) : nullptr) {
    const absl::string_view name = entry->d_name;
    if (name != "." && name != ".." && absl::StartsWith(name, prefix)) names.emplace_back(name);
  }
  return names;
}

// The folder of one host, in that of its job.
absl::Status RemoveStateOf(int job, const std::string& host, int folder, absl::string_view path) {
  for (const std::string& name : StateNames(folder, kFilePrefix)) {
    (void)unlinkat(folder, name.c_str(), 0);
  }
  if (unlinkat(job, host.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT) return absl::OkStatus();
  return PosixError(errno, absl::StrCat("remove the folder of kept state ", Escape(path)));
}

}  // namespace

std::string CacheOfUser() {
  const char* cache = getenv("XDG_CACHE_HOME");
  if (cache != nullptr && cache[0] == '/') return cache;
  const char* home = getenv("HOME");
  return home != nullptr && home[0] == '/' ? absl::StrCat(home, "/.cache") : "";
}

absl::StatusOr<StateFolder> StateFolder::Of(const v1::JobPart& part, absl::string_view cache) {
  StateFolder folder;
  folder.directory_ = part.state().directory();
  if (folder.directory_.empty()) {
    if (cache.empty()) {
      return absl::FailedPreconditionError(
          "choose a folder: neither HOME nor XDG_CACHE_HOME is set");
    }
    folder.directory_ = absl::StrCat(cache, "/dtrain/state");
  }
  if (folder.directory_[0] != '/' || !IsPlainComponent(part.job_id()) ||
      !IsPlainComponent(part.host())) {
    return absl::InvalidArgumentError(
        absl::StrCat("make a folder of the name ", Escape(folder.directory_), "/",
                     Escape(part.job_id()), "/", Escape(part.host())));
  }
  folder.job_path_ = absl::StrCat(folder.directory_, "/", part.job_id());
  folder.path_ = absl::StrCat(folder.job_path_, "/", part.host());
  return folder;
}

absl::Status StateFolder::Make() const {
  for (size_t at = job_path_.find('/', 1); at != std::string::npos;
       at = job_path_.find('/', at + 1)) {
    const std::string above = job_path_.substr(0, at);
    if (mkdir(above.c_str(), 0700) != 0 && errno != EEXIST && access(above.c_str(), F_OK) != 0) {
      return PosixError(errno, absl::StrCat("make the folder ", Escape(above)));
    }
  }
  struct stat info;
  if (mkdir(job_path_.c_str(), 0700) != 0 && errno != EEXIST) {
    return PosixError(errno, absl::StrCat("make the folder ", Escape(job_path_)));
  }
  auto job = OpenStateFolder(AT_FDCWD, job_path_, job_path_, &info);
  if (!job.ok()) return job.status();
  const std::string host = path_.substr(job_path_.size() + 1);
  if (mkdirat(job->get(), host.c_str(), 0700) != 0 && errno != EEXIST) {
    return PosixError(errno, absl::StrCat("make the folder ", Escape(path_)));
  }
  return OpenStateFolder(job->get(), host, path_, &info).status();
}

absl::Status StateFolder::Remove() const {
  struct stat info;
  auto job = OpenStateFolder(AT_FDCWD, job_path_, job_path_, &info);
  if (absl::IsNotFound(job.status())) return absl::OkStatus();
  if (!job.ok()) return job.status();
  const std::string host = path_.substr(job_path_.size() + 1);
  auto folder = OpenStateFolder(job->get(), host, path_, &info);
  absl::Status removed = absl::IsNotFound(folder.status()) ? absl::OkStatus() : folder.status();
  if (folder.ok()) removed = RemoveStateOf(job->get(), host, folder->get(), path_);
  (void)rmdir(job_path_.c_str());  // not while it holds those of other nodes
  return removed;
}

void StateFolder::RemoveIfEmpty() const {
  (void)rmdir(path_.c_str());
  (void)rmdir(job_path_.c_str());
}

void StateFolder::RemoveOlder(std::chrono::seconds age) const {
  const time_t oldest = time(nullptr) - static_cast<time_t>(age.count());
  os::UniqueFd top(open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!top) return;
  for (const std::string& name : StateNames(top.get(), kJobPrefix)) {
    struct stat info;
    auto job = OpenStateFolder(top.get(), name, name, &info);
    if (!job.ok()) continue;
    bool is_old = info.st_mtime < oldest;  // one that another job is just making is not
    for (const std::string& host : StateNames(job->get(), "")) {
      auto folder = OpenStateFolder(job->get(), host, host, &info);
      if (!folder.ok() || info.st_mtime >= oldest) continue;
      is_old = true;
      RemoveStateOf(job->get(), host, folder->get(), host).IgnoreError();
    }
    if (is_old) (void)unlinkat(top.get(), name.c_str(), AT_REMOVEDIR);
  }
}

bool StateFolder::Answers(Duration limit) const {
  return os::IsAtHand(directory_) || os::ReturnsWithin(limit, [this] {
           struct stat info;
           (void)stat(directory_.c_str(), &info);
         });
}

namespace {

// For the file system that has it to answer: meanwhile we answer nobody.
constexpr std::chrono::seconds kStateAnswer{2};

}  // namespace

void KeptState::Choose(const v1::JobPart& part, bool in_containers) {
  if (!part.has_state()) return;
  auto folder = StateFolder::Of(part, CacheOfUser());
  absl::Status usable = folder.status();
  if (usable.ok() && in_containers) usable = folder->Make();
  if (usable.ok()) {
    folder_ = *std::move(folder);
  } else {
    launcher_.Warn(absl::StrCat("dtrain.elastic cannot keep its state for a restart: cannot ",
                                usable.message()),
                   /*detail=*/true);
  }
}

// What failed workers have kept stays for the next attempt. Whether there is one, and whether it
// runs here, is not known.
void KeptState::Tidy(bool all_succeeded) const {
  if (!folder_) return;
  if (!folder_->Answers(kStateAnswer)) {
    return launcher_.Warn(absl::StrCat(
        "what dtrain.elastic may have kept is not removed: ", folder_->path(),
        " does not answer within ", kStateAnswer.count(), " s: is its file server down?"));
  }
  if (all_succeeded) {
    if (const absl::Status removed = folder_->Remove(); !removed.ok()) {
      launcher_.Warn(absl::StrCat("cannot ", removed.message()));
    }
  } else {
    folder_->RemoveIfEmpty();
  }
  folder_->RemoveOlder(kOldState);
}

}  // namespace dtrain::shepherd
