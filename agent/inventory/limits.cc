// SPDX-License-Identifier: Apache-2.0
#include "agent/inventory/limits.h"

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace dtrain::inventory {
namespace {

// Docker's default.
constexpr uint64_t kLittleSharedMemory = uint64_t{64} << 20;
// systemd's default. A rank on an RDMA network registers hundreds of MiB.
constexpr uint64_t kLittleLockedMemory = uint64_t{8} << 20;

}  // namespace

SmallLimits ReadSmallLimits(const Roots& roots) {
  SmallLimits limits;
  struct statvfs shm {};
  if (statvfs("/dev/shm", &shm) == 0) {
    limits.shared_memory_bytes = uint64_t{shm.f_blocks} * shm.f_frsize;
  }
  rlimit locked{};
  // Root may lock what it likes.
  if (geteuid() != 0 && getrlimit(RLIMIT_MEMLOCK, &locked) == 0 &&
      locked.rlim_cur != RLIM_INFINITY) {
    limits.locked_memory_bytes = locked.rlim_cur;
  }
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

}  // namespace dtrain::inventory
