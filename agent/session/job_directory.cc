// SPDX-License-Identifier: Apache-2.0
#include "agent/session/job_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "agent/session/state_file.h"
#include "common/base/posix_error.h"
#include "common/log/log.h"
#include "common/os/fd.h"
#include "common/os/private_file.h"
#include "common/os/unix_sockets.h"

namespace dtrain::session {
namespace {

constexpr char kSocket[] = "shepherd.sock";
constexpr char kRecord[] = "record";
constexpr size_t kBytesOfSocket = 320;  // in the kernel's list of them, at most

constexpr char kJobs[] = "/jobs";
constexpr char kHidden[] = "/kept";  // no shorter: a socket's path has to fit under both

absl::StatusOr<sockaddr_un> SocketName(const std::string& directory) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const std::string path = absl::StrCat(directory, "/", kSocket);
  if (path.size() >= sizeof(name.sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the socket path ", path, " is longer than the ", sizeof(name.sun_path) - 1,
                     " bytes that unix sockets take: give the agent a shorter --state-dir"));
  }
  std::memcpy(name.sun_path, path.data(), path.size());
  return name;
}

absl::StatusOr<os::UniqueFd> Bind(const std::string& directory) {
  auto name = SocketName(directory);
  if (!name.ok()) return name.status();
  os::UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return PosixError(errno, "make a socket");
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&*name), sizeof(*name)) != 0) {
    return PosixError(errno, absl::StrCat("make ", name->sun_path));
  }
  return fd;
}

// "/jobs/J.0.1000/shepherd.sock" of the path of a socket. Empty: it is shorter.
std::string EndOfPath(absl::string_view path) {
  size_t at = path.size();
  for (int part = 0; part < 3; ++part) {
    at = at == 0 ? path.npos : path.rfind('/', at - 1);
    if (at == path.npos) return "";
  }
  return std::string(path.substr(at));
}

}  // namespace

std::string JobDirectory::Part(size_t number) const {
  const std::vector<std::string> parts =
      absl::StrSplit(absl::string_view(path_).substr(path_.rfind('/') + 1), '.');
  return number < parts.size() ? parts[number] : "";
}

std::string JobDirectory::job_id() const { return Part(0); }

uint32_t JobDirectory::attempt() const {
  uint32_t attempt = 0;
  return absl::SimpleAtoi(Part(1), &attempt) ? attempt : 0;
}

std::optional<uid_t> JobDirectory::uid() const {
  uid_t uid = 0;
  return absl::SimpleAtoi(Part(2), &uid) ? std::optional(uid) : std::nullopt;
}

absl::StatusOr<JobDirectory> JobDirectory::Make(const std::string& state, const spawn::JobKey& job,
                                                bool with_socket) {
  return MakeIn(absl::StrCat(state, kJobs), job, with_socket);
}

absl::StatusOr<JobDirectory> JobDirectory::MakeHidden(const std::string& state,
                                                      const spawn::JobKey& job) {
  for (const char* folder : {kHidden, kJobs}) {
    absl::Status made = os::MakeOwnDirectory(absl::StrCat(state, folder), 0700, 0700);
    if (!made.ok()) return made;
  }
  const std::string hidden = absl::StrCat(state, kHidden);
  auto made = MakeIn(hidden, job, /*with_socket=*/true);
  // An agent that starts just now takes one without a socket for a dead one.
  if (!absl::IsNotFound(made.status())) return made;
  return MakeIn(hidden, job, /*with_socket=*/true);
}

// A socket stays bound when the folder that it is in gets another name.
absl::Status JobDirectory::Show() {
  const size_t name = path_.rfind('/');
  const std::string shown =
      absl::StrCat(path_.substr(0, name - (sizeof(kHidden) - 1)), kJobs, path_.substr(name));
  if (rename(path_.c_str(), shown.c_str()) != 0) {
    return PosixError(errno, absl::StrCat("rename ", path_, " to ", shown));
  }
  path_ = shown;
  return absl::OkStatus();
}

void JobDirectory::RemoveDead(const std::vector<JobDirectory>& directories) {
  std::set<spawn::JobKey> jobs;
  for (const JobDirectory& directory : directories) jobs.insert(directory.key());
  const std::set<spawn::JobKey> living = FindShepherds(jobs);
  for (const JobDirectory& directory : directories) {
    if (!living.contains(directory.key())) directory.Remove();
  }
}

absl::StatusOr<JobDirectory> JobDirectory::MakeIn(const std::string& folder,
                                                  const spawn::JobKey& job, bool with_socket) {
  if (!spawn::IsPlainJobId(job.job_id)) {
    return absl::InvalidArgumentError("a job id may hold letters, digits, '-' and '_' only");
  }
  JobDirectory directory(absl::StrCat(folder, "/", job.job_id, ".", job.attempt, ".", job.uid));
  if (mkdir(directory.path_.c_str(), 0700) != 0) {
    return PosixError(errno, absl::StrCat("make ", directory.path_));
  }
  if (!with_socket) return directory;
  auto bound = Bind(directory.path_);
  if (!bound.ok()) {
    directory.Remove();
    return bound.status();
  }
  directory.bound_ = *std::move(bound);
  return directory;
}

std::vector<JobDirectory> JobDirectory::List(const std::string& state) {
  return ListIn(absl::StrCat(state, kJobs));
}

std::vector<JobDirectory> JobDirectory::ListHidden(const std::string& state) {
  return ListIn(absl::StrCat(state, kHidden));
}

std::vector<JobDirectory> JobDirectory::ListIn(const std::string& folder) {
  std::vector<JobDirectory> out;
  std::unique_ptr<DIR, int (*)(DIR*)> listing(opendir(folder.c_str()), closedir);
  if (listing == nullptr) return out;
  while (dirent* entry = readdir(listing.get())) {
    if (entry->d_name[0] != '.') {
      out.push_back(JobDirectory(absl::StrCat(folder, "/", entry->d_name)));
    }
  }
  return out;
}

absl::Status JobDirectory::Write(const v1::JobRecord& record) const {
  return WriteStateFile(absl::StrCat(path_, "/", kRecord), record.SerializeAsString());
}

absl::StatusOr<v1::JobRecord> JobDirectory::Read() const {
  const std::string path = absl::StrCat(path_, "/", kRecord);
  auto bytes = os::ReadPrivateFile(path);
  if (!bytes.ok()) return bytes.status();
  v1::JobRecord record;
  if (!record.ParseFromString(*bytes) || !spawn::IsPlainJobId(record.job_id()) ||
      record.boot_id().empty()) {
    return absl::DataLossError(absl::StrCat(path, " is damaged"));
  }
  return record;
}

// The kernel tells everybody the name that its socket had when it was made. One that dtrain-spawner
// has started has a socket without such a name, and a cgroup. Other users can make sockets and
// cgroups of any name, but neither as root, whose agent makes sockets for all users, nor as the
// user whose job it is.
std::set<spawn::JobKey> JobDirectory::FindShepherds(const std::set<spawn::JobKey>& jobs,
                                                    size_t most_sockets) {
  std::set<spawn::JobKey> found;
  if (jobs.empty()) return found;
  std::map<std::string, spawn::JobKey> sockets;
  std::multimap<uid_t, std::pair<std::string, spawn::JobKey>> cgroups;
  for (const spawn::JobKey& job : jobs) {
    const std::string name = absl::StrCat(job.job_id, ".", job.attempt);
    for (const char* folder : {kJobs, kHidden}) {
      sockets.emplace(absl::StrCat(folder, "/", name, ".", job.uid, "/", kSocket), job);
    }
    cgroups.emplace(job.uid, std::pair(absl::StrCat("/u", job.uid, "/", name, "/"), job));
  }

  absl::Status listed =
      os::ForEachUnixSocket(most_sockets, [&](absl::string_view path, std::optional<uid_t> maker) {
        const auto socket = sockets.find(EndOfPath(path));
        if (socket == sockets.end()) return;
        const spawn::JobKey& job = socket->second;
        if (!maker || *maker == 0 || *maker == job.uid) found.insert(job);
      });
  if (absl::IsUnavailable(listed)) {
    const auto list = os::ReadSmallFile("/proc/net/unix", most_sockets * kBytesOfSocket);
    listed = list.status();
    for (const auto& [end, job] : sockets) {
      if (list.ok() && absl::StrContains(*list, absl::StrCat(end, "\n"))) found.insert(job);
    }
  }

  if (absl::IsResourceExhausted(listed)) {
    static const bool told = [&] {
      log::Warn(absl::StrCat("there are ", listed.message(), ", too many to look at: a job ",
                             "whose shepherd may have ended counts as alive"));
      return true;
    }();
    (void)told;
    return jobs;
  }

  std::unique_ptr<DIR, int (*)(DIR*)> processes(opendir("/proc"), closedir);
  while (const dirent* entry = processes == nullptr ? nullptr : readdir(processes.get())) {
    struct stat owner {};
    if (!absl::ascii_isdigit(static_cast<unsigned char>(entry->d_name[0])) ||
        fstatat(dirfd(processes.get()), entry->d_name, &owner, 0) != 0) {
      continue;
    }
    const auto [first, end] = cgroups.equal_range(owner.st_uid);
    if (first == end) continue;
    const auto of = os::ReadSmallFile(absl::StrCat("/proc/", entry->d_name, "/cgroup"));
    for (auto each = first; of.ok() && each != end; ++each) {
      const auto& [cgroup, job] = each->second;
      if (absl::StrContains(*of, cgroup)) found.insert(job);
    }
  }
  return found;
}

absl::StatusOr<os::UniqueFd> JobDirectory::Connect() const {
  auto name = SocketName(path_);
  if (!name.ok()) return name.status();
  os::UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return PosixError(errno, "make a socket");
  os::RefuseDescriptors(fd.get());
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&*name), sizeof(*name)) != 0) {
    return PosixError(errno, absl::StrCat("connect to ", name->sun_path));
  }
  return fd;
}

void JobDirectory::Remove() const {
  const std::string record = absl::StrCat(path_, "/", kRecord);
  for (const std::string& path : {absl::StrCat(path_, "/", kSocket), record, DraftOf(record)}) {
    (void)unlink(path.c_str());
  }
  (void)rmdir(path_.c_str());
}

}  // namespace dtrain::session
