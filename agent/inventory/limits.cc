// SPDX-License-Identifier: Apache-2.0
#include "agent/inventory/limits.h"

#include <linux/capability.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/clock.h"
#include "common/os/fd.h"
#include "common/os/shared_memory.h"

namespace dtrain::inventory {
namespace {

// Docker's default.
constexpr uint64_t kLittleSharedMemory = uint64_t{64} << 20;
// systemd's default. A rank on an RDMA network registers hundreds of MiB.
constexpr uint64_t kLittleLockedMemory = uint64_t{8} << 20;
// A look goes through a folder that anybody can fill, and launchers ask as often as they like.
constexpr Duration kLookLasts = std::chrono::seconds(1);
constexpr int kLookPart = 10;  // of the time that one user's looks may take

// "Max locked memory         8388608              8388608              bytes": the soft limit,
// which anyone may read of any process. Null: unlimited, or it cannot be read.
std::optional<uint64_t> LockedMemoryLimit(const std::string& folder) {
  const auto limits = os::ReadSmallFile(folder + "/limits", 1 << 16);
  if (!limits.ok()) return std::nullopt;
  for (absl::string_view line : absl::StrSplit(*limits, '\n')) {
    uint64_t bytes = 0;
    if (!absl::ConsumePrefix(&line, "Max locked memory")) continue;
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (!words.empty() && absl::SimpleAtoi(words[0], &bytes)) return bytes;
  }
  return std::nullopt;
}

bool MayLockAnything(const std::string& folder) {
  const auto status = os::ReadSmallFile(folder + "/status", 1 << 16);
  if (!status.ok()) return false;
  for (absl::string_view line : absl::StrSplit(*status, '\n')) {
    uint64_t capabilities = 0;
    if (!absl::ConsumePrefix(&line, "CapEff:")) continue;
    return absl::SimpleHexAtoi(absl::StripAsciiWhitespace(line), &capabilities) &&
           (capabilities >> CAP_IPC_LOCK & 1) != 0;
  }
  return false;
}

// Whether somebody uses it matters only to whoever removes it.
std::string LookForLeftMemory(uid_t user) {
  std::set<os::SharedMemory> left;
  for (const os::RecordedSharedMemory& record : os::ReadSharedMemoryRecords(user)) {
    if (!record.lives) left.insert(record.objects.begin(), record.objects.end());
  }
  if (left.empty()) return "";
  std::vector<os::NamedSharedMemory> objects = os::ListSharedMemory(user);
  std::erase_if(objects, [&](const auto& each) { return !left.contains(each.object); });
  if (objects.empty()) return "";
  return absl::StrCat("earlier jobs of this user have left ", os::Describe(objects),
                      " in /dev/shm; dtrain-agent reap removes what nobody uses");
}

}  // namespace

SmallLimits ReadSharedMemory() {
  SmallLimits limits;
  struct statvfs shm {};
  if (statvfs("/dev/shm", &shm) == 0) {
    limits.shared_memory_bytes = uint64_t{shm.f_blocks} * shm.f_frsize;
  }
  return limits;
}

SmallLimits ReadLockedMemory(const Roots& roots, pid_t pid, bool of_users) {
  SmallLimits limits;
  const std::string folder =
      pid == 0 ? roots.procfs + "/self" : absl::StrCat(roots.procfs, "/", pid);
  if (of_users || !MayLockAnything(folder)) limits.locked_memory_bytes = LockedMemoryLimit(folder);
  std::error_code none;
  const std::filesystem::directory_iterator adapters(roots.sysfs + "/class/infiniband", none);
  limits.rdma = !none && adapters != std::filesystem::directory_iterator();
  return limits;
}

std::vector<std::string> WarningsOf(const SmallLimits& limits) {
  std::vector<std::string> warnings;
  if (limits.shared_memory_bytes && *limits.shared_memory_bytes <= kLittleSharedMemory) {
    warnings.push_back(absl::StrCat(
        "/dev/shm has only ", *limits.shared_memory_bytes >> 20,
        " MiB: NCCL and PyTorch's data loaders may fail with a bus error; start the container with "
        "--shm-size=8g, or remount it (mount -o remount,size=8g /dev/shm)"));
  }
  if (limits.rdma && limits.locked_memory_bytes &&
      *limits.locked_memory_bytes <= kLittleLockedMemory) {
    warnings.push_back(absl::StrCat(
        "only ", *limits.locked_memory_bytes >> 20,
        " MiB of memory may be locked (ulimit -l), and this node has RDMA adapters: NCCL and MPI "
        "may fail to register memory; raise memlock (/etc/security/limits.conf, LimitMEMLOCK=)"));
  }
  return warnings;
}

std::string LeftMemoryWarnings::For(uid_t user) {
  const TimePoint begin = Clock::now();
  std::erase_if(answers_, [begin](const auto& each) { return each.second.until <= begin; });
  const auto [answer, is_new] = answers_.try_emplace(user);
  if (is_new) {
    answer->second.warning = LookForLeftMemory(user);
    const Duration cost = Clock::now() - begin;
    answer->second.until = begin + std::max<Duration>(kLookLasts, kLookPart * cost);
  }
  return answer->second.warning;
}

}  // namespace dtrain::inventory
