// SPDX-License-Identifier: Apache-2.0
#include "spawner/cgroups.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace dtrain::spawner {
namespace {

constexpr char kMount[] = "/sys/fs/cgroup";
// What a user may make below a job's cgroup, all of which the kernel keeps.
constexpr char kMostCgroups[] = "1000";
constexpr char kDeepestCgroup[] = "12";
constexpr char kOwn[] = "/spawner";
// Where systemd starts what is not the unit's main process.
constexpr char kControl[] = "/.control";
constexpr int kDeepest = 16;        // and no deeper do we look
constexpr int kRemovedAtOnce = 64;  // for the loop's sake

std::string MountPoint() {
  struct statfs usual {};
  if (statfs(kMount, &usual) == 0 && usual.f_type == CGROUP2_SUPER_MAGIC) return kMount;
  const std::string mounts = ReadFile("/proc/self/mountinfo", 16 << 20);
  const size_t at = mounts.find(" - cgroup2 ");
  if (at == mounts.npos) return "";
  // "36 35 98:0 ROOT MOUNT-POINT OPTIONS..."
  std::string line = mounts.substr(mounts.rfind('\n', at) + 1);
  for (int field = 0; field < 4; ++field) line.erase(0, line.find(' ') + 1);
  return line.substr(0, line.find(' '));
}

bool Make(const std::string& path) { return mkdir(path.c_str(), 0755) == 0; }

void CollectPids(const std::string& path, int depth, std::vector<uint32_t>* out) {
  const std::string text = ReadFile(path + "/cgroup.procs", 1 << 16);
  for (const char* at = text.c_str(); *at != '\0' && out->size() < kMostPids;) {
    char* end;
    out->push_back(static_cast<uint32_t>(strtoul(at, &end, 10)));
    at = *end == '\0' ? end : end + 1;
  }
  if (depth == kDeepest) return;
  for (const std::string& child : Folders(path)) CollectPids(path + "/" + child, depth + 1, out);
}

// Takes each from its user before it looks below, so that nothing new comes there.
bool Remove(const std::string& path, int depth, int* left) {
  (void)!chown(path.c_str(), 0, 0);
  if (depth < kDeepest) {
    for (const std::string& child : Folders(path)) {
      if (!Remove(path + "/" + child, depth + 1, left)) return false;
    }
  }
  return (*left)-- > 0 && (rmdir(path.c_str()) == 0 || errno == ENOENT);
}

}  // namespace

std::string FindCgroup(std::string* out, bool* leaf) {
  const std::string mount = MountPoint();
  if (mount.empty()) return "cgroup v2 is not mounted, and without it jobs cannot be killed";
  const std::string own = ReadFile("/proc/self/cgroup", 1 << 16);
  size_t at = own.rfind("0::/", 0) == 0 ? 0 : own.find("\n0::/");
  if (at == own.npos) return "this process is in no cgroup of version 2";
  at = own.find('/', at);
  std::string path = own.substr(at, own.find('\n', at) - at);
  path = path == "/" ? mount : mount + path;
  if (access(path.c_str(), F_OK) != 0) path = mount;  // a container's own part of the tree
  *leaf = path.ends_with(kOwn);
  if (*leaf || path.ends_with(kControl)) path.resize(path.rfind('/'));
  *out = path;
  return "";
}

std::string PrepareCgroups(const std::string& path) {
  const std::string jobs = path + "/jobs";
  if ((!Make(path + kOwn) && errno != EEXIST) || (!Make(jobs) && errno != EEXIST)) {
    return Because("make cgroups in " + path);
  }
  if (access((jobs + "/cgroup.kill").c_str(), W_OK) != 0) {
    return Because(jobs + "/cgroup.kill, which is there since Linux 5.14");
  }
  if (!WriteFile(path + kOwn + "/cgroup.procs", "0")) return Because("move to " + path + kOwn);
  return "";
}

std::string CgroupOf(const std::string& jobs, const Name& name) {
  return jobs + Format("/u%u/%s.%u", name.uid, name.job, name.attempt);
}

bool MakeCgroup(const std::string& path, uid_t uid, gid_t gid) {
  if (!Make(path.substr(0, path.rfind('/'))) && errno != EEXIST) return false;
  if (!Make(path) || !Make(path + "/shepherd") || !Make(path + "/workers")) return false;
  if (!WriteFile(path + "/cgroup.max.descendants", kMostCgroups)) return false;
  if (!WriteFile(path + "/cgroup.max.depth", kDeepestCgroup)) return false;
  for (const char* given :
       {"/cgroup.procs", "/workers", "/workers/cgroup.procs", "/workers/cgroup.threads",
        "/workers/cgroup.subtree_control", "/workers/cgroup.kill"}) {
    if (chown((path + given).c_str(), uid, gid) != 0) return false;
  }
  return true;
}

bool KillCgroup(const std::string& path) { return WriteFile(path + "/cgroup.kill", "1"); }

bool IsPopulated(const Fd& events) {
  char text[256] = {};
  return pread(events.get(), text, sizeof(text) - 1, 0) > 0 &&
         std::string_view(text).find("populated 1") != std::string_view::npos;
}

std::vector<uint32_t> PidsIn(const std::string& path) {
  std::vector<uint32_t> out;
  CollectPids(path, 0, &out);
  return out;
}

bool RemoveCgroup(const std::string& path) {
  int left = kRemovedAtOnce;
  if (!Remove(path, 0, &left)) return false;
  rmdir(path.substr(0, path.rfind('/')).c_str());  // the user's, unless there is another job
  return true;
}

std::vector<std::string> Folders(const std::string& path) {
  std::vector<std::string> out;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(path.c_str()), closedir);
  while (const dirent* entry = folder == nullptr ? nullptr : readdir(folder.get())) {
    const std::string_view name = entry->d_name;
    if (entry->d_type == DT_DIR && name != "." && name != ".." && out.size() < 4096)
      out.emplace_back(name);
  }
  return out;
}

bool WriteFile(const std::string& path, std::string_view text) {
  const Fd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  return fd && write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

std::string ReadRootsFile(const std::string& path, std::string* why) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) {
    *why = Because("read " + path);
  } else if (!S_ISREG(info.st_mode) || info.st_uid != 0 || (info.st_mode & 022) != 0) {
    *why = path + " must be a file of root's that nobody else can write";
  }
  return why->empty() ? ReadFile(path, 1 << 20) : "";
}

std::string ReadFile(const std::string& path, size_t most) {
  std::string out;
  const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  char buffer[4096];
  ssize_t n;
  while (fd && out.size() < most && (n = read(fd.get(), buffer, sizeof(buffer))) > 0) {
    out.append(buffer, static_cast<size_t>(n));
  }
  return out;
}

}  // namespace dtrain::spawner
