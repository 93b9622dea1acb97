// SPDX-License-Identifier: Apache-2.0
#include "agent/resident.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "agent/spawn/spawner_policy.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"
#include "common/os/fd.h"
#include "common/os/private_file.h"

namespace dtrain::agent {
namespace {

constexpr char kSystemDirectory[] = "/run/dtrain-agent";
// Where systemd listens for the system's agent: in a folder of root's.
constexpr char kSystemSocket[] = "/run/dtrain-sockets/agent.sock";
// The system's maximum: a user with too many connections is refused only once they are accepted,
// and must not keep others out until then.
constexpr int kLocalBacklog = SOMAXCONN;
constexpr size_t kMostOfBuild = 1 << 20;

std::string UserDirectory() {
  const char* runtime = getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && runtime[0] == '/') return absl::StrCat(runtime, "/dtrain-agent");
  return absl::StrCat("/run/user/", geteuid(), "/dtrain-agent");
}

absl::StatusOr<sockaddr_un> Name(const std::string& path) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (path.size() >= sizeof(name.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("the socket path ", path, " is longer than the ",
                                                   sizeof(name.sun_path) - 1,
                                                   " bytes that unix sockets take"));
  }
  std::memcpy(name.sun_path, path.data(), path.size());
  return name;
}

// The linker's hash of the program, from its own headers in memory.
int TakeHash(dl_phdr_info* info, size_t, void* out) {
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = info->dlpi_phdr[i];
    if (header.p_type != PT_NOTE) continue;
    const char* at = reinterpret_cast<const char*>(info->dlpi_addr + header.p_vaddr);
    const char* end = at + header.p_memsz;
    const auto aligned = [](uint32_t n) { return (n + 3) & ~uint32_t{3}; };
    while (at + sizeof(ElfW(Nhdr)) <= end) {
      ElfW(Nhdr) note;
      std::memcpy(&note, at, sizeof(note));
      const char* name = at + sizeof(note);
      const char* description = name + aligned(note.n_namesz);
      if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && memcmp(name, "GNU", 4) == 0) {
        *static_cast<std::string*>(out) =
            absl::BytesToHexString(absl::string_view(description, note.n_descsz));
        return 1;
      }
      at = description + aligned(note.n_descsz);
    }
  }
  return 1;  // only the program itself, which comes first
}

struct Served {
  std::string build;
  uid_t owner;
};

// Which build serves from `directory`, and as which user. The directory tells the user: the agent
// has made it, and can link or move another user's files into it. NOT_FOUND: no agent is there, as
// far as we can see.
absl::StatusOr<Served> LookInto(const std::string& directory) {
  const std::string path = directory + "/build";
  const os::UniqueFd folder(open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  struct stat info {};
  if (!folder || fstat(folder.get(), &info) != 0) return absl::NotFoundError(path);
  const uid_t owner = info.st_uid;
  const os::UniqueFd file(
      openat(folder.get(), "build", O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  // ENXIO: a socket.
  if (!file && errno != ENOENT && errno != EACCES && errno != ELOOP && errno != ENXIO) {
    return PosixError(errno, absl::StrCat("open ", Escape(path)));
  }
  if (!file || fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::NotFoundError(path);
  }
  auto build = os::ReadToEnd(file.get(), path, kMostOfBuild);
  if (!build.ok()) return build.status();
  return Served{*std::move(build), owner};
}

// Whether we are root, and the agent is not: then its spawner decides, by a file that is for root
// to read.
bool RefusesRoot(uid_t agent) { return geteuid() == 0 && agent != 0 && !spawn::AllowsRoot(); }

absl::StatusOr<os::UniqueFd> ConnectTo(const std::string& path) {
  auto name = Name(path);
  if (!name.ok()) return name.status();
  os::UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd || connect(fd.get(), reinterpret_cast<const sockaddr*>(&*name), sizeof(*name)) != 0) {
    return PosixError(errno, absl::StrCat("connect to ", Escape(path)));
  }
  return fd;
}

}  // namespace

std::string DefaultStateDirectory(bool for_all) {
  return for_all ? kSystemDirectory : UserDirectory();
}

std::string BuildId() {
  std::string hash;
  dl_iterate_phdr(TakeHash, &hash);
  return absl::StrCat(DTRAIN_VERSION, " ", hash, "\n");
}

absl::StatusOr<ResidentDirectory> ResidentDirectory::Hold(std::string path, bool for_all) {
  const mode_t mode = for_all ? 0755 : 0700;
  if (absl::Status made = os::MakeOwnDirectory(path, mode, 0755); !made.ok()) return made;
  const std::string lock_path = path + "/lock";
  const absl::Status is_ours = os::CheckPrivateFile(lock_path);
  if (!is_ours.ok() && !absl::IsNotFound(is_ours)) return is_ours;
  os::UniqueFd lock(open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock) return PosixError(errno, absl::StrCat("open ", lock_path));
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return PosixError(errno, absl::StrCat("lock ", lock_path));
    auto holder = os::ReadSmallFile(lock_path);
    return absl::AlreadyExistsError(absl::StrCat(
        "another agent serves from ", path, holder.ok() ? ", process " + *holder : "",
        ": only one may run per node (and user); stop it, or choose another --state-dir"));
  }
  const std::string pid = absl::StrCat(getpid());
  if (ftruncate(lock.get(), 0) != 0 || pwrite(lock.get(), pid.data(), pid.size(), 0) < 0) {
    return PosixError(errno, absl::StrCat("write ", lock_path));
  }
  // Users may pass through to sockets that are theirs; what is in a job's folder is not for others.
  if (absl::Status made = os::MakeOwnDirectory(path + "/jobs", 0700, 0700); !made.ok()) return made;
  return ResidentDirectory(std::move(path), std::move(lock), for_all);
}

absl::StatusOr<os::UniqueFd> ResidentDirectory::Listen(std::optional<os::UniqueFd> given) {
  bound_ = !given;
  absl::StatusOr<os::UniqueFd> fd = ListenAt(socket_path(), std::move(given));
  if (!fd.ok()) return fd;
  const std::string build = path_ + "/build";
  os::UniqueFd file(open((build + ".new").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  const std::string id = BuildId();
  // Users are to read it, whatever our umask: the packages' unit has 077.
  if (!file || fchmod(file.get(), for_all_ ? 0644 : 0600) != 0 ||
      write(file.get(), id.data(), id.size()) != static_cast<ssize_t>(id.size()) ||
      rename((build + ".new").c_str(), build.c_str()) != 0) {
    return PosixError(errno, absl::StrCat("write ", build));
  }
  return fd;
}

absl::StatusOr<os::UniqueFd> ResidentDirectory::ListenAt(const std::string& path,
                                                         std::optional<os::UniqueFd> given) const {
  if (!given) return Bind(path);
  os::RefuseDescriptors(given->get());
  sockaddr_un bound{};
  socklen_t size = sizeof(bound) - 1;  // so that the path ends
  if (getsockname(given->get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    return PosixError(errno, "look where systemd listens");
  }
  if (path == bound.sun_path) return *std::move(given);
  if ((unlink(path.c_str()) != 0 && errno != ENOENT) ||
      symlink(bound.sun_path, path.c_str()) != 0) {
    return PosixError(errno, absl::StrCat("make ", path, " a link to ", bound.sun_path));
  }
  return *std::move(given);
}

void ResidentDirectory::Leave() const {
  if (bound_) (void)unlink(socket_path().c_str());
}

absl::StatusOr<os::UniqueFd> ResidentDirectory::Bind(const std::string& socket_path) const {
  auto name = Name(socket_path);
  if (!name.ok()) return name.status();
  os::UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return PosixError(errno, "make a socket");
  os::RefuseDescriptors(fd.get());
  // The lock is ours, so nobody listens there.
  (void)unlink(name->sun_path);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&*name), sizeof(*name)) != 0) {
    return PosixError(errno, absl::StrCat("make ", name->sun_path));
  }
  // Whoever connects is known by the kernel's word, not by the mode.
  if (chmod(name->sun_path, for_all_ ? 0666 : 0600) != 0 || listen(fd.get(), kLocalBacklog) != 0) {
    return PosixError(errno, absl::StrCat("listen on ", name->sun_path));
  }
  return fd;
}

absl::StatusOr<FoundResident> ConnectToResident(bool any_build, bool for_launch) {
  std::vector<std::string> candidates = {kSystemDirectory};
  if (const char* named = getenv("DTRAIN_AGENT_STATE"); named != nullptr) {
    candidates.clear();
    if (strcmp(named, "none") != 0) candidates.emplace_back(named);
  } else if (os::CheckTrustedFile(UserDirectory() + "/build").ok()) {
    // su and sudo leave XDG_RUNTIME_DIR of another user, whose agent would run our jobs.
    candidates.insert(candidates.begin(), UserDirectory());
  }
  FoundResident found;
  for (const std::string& directory : candidates) {
    const auto served = LookInto(directory);
    if (absl::IsNotFound(served.status())) continue;
    // To do without an agent that may be there would share the node's GPUs with its jobs.
    if (!served.ok()) return served.status();
    const bool same = served->build == BuildId();
    auto fd = absl::StatusOr<os::UniqueFd>(absl::NotFoundError(""));
    if (directory == kSystemDirectory) fd = ConnectTo(kSystemSocket);
    if (!fd.ok()) fd = ConnectTo(directory + "/agent.sock");
    if (!fd.ok()) {
      // Without a socket it has left in order, and no job of its own.
      if (same && !absl::IsNotFound(fd.status()) && found.silence.empty()) {
        found.silence = std::string(fd.status().message());
      }
      continue;
    }
    if (same && for_launch && RefusesRoot(served->owner)) {
      found.refuses_root = true;
      continue;
    }
    if (same) return FoundResident{*std::move(fd), "", "", false};
    if (any_build && !found.stream) found.stream = *std::move(fd);
    if (!any_build && found.other_build.empty()) found.other_build = served->build;
  }
  return found;
}

}  // namespace dtrain::agent
