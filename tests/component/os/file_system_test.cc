// SPDX-License-Identifier: Apache-2.0
#include "common/os/file_system.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/os/unique_fd.h"

namespace dtrain::os {
namespace {

TEST(FileSystemTest, KindsOfFileSystems) {
  const UniqueFd proc(open("/proc/version", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(FileSystemOf(proc.get()).value_or("none"), "proc");
  const UniqueFd memory(memfd_create("test", MFD_CLOEXEC));
  EXPECT_EQ(FileSystemOf(memory.get()).value_or("none"), "tmpfs");
  const UniqueFd file(open(testing::TempDir().c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  EXPECT_TRUE(FileSystemOf(file.get()).ok()) << FileSystemOf(file.get()).status();
  EXPECT_FALSE(FileSystemOf(-1).ok());
}

// As a user's mount namespace has them.
TEST(FileSystemTest, AMountThatIsNotOurs) {
  constexpr long kClone = 1;  // OPEN_TREE_CLONE
  const UniqueFd tree(static_cast<int>(syscall(SYS_open_tree, AT_FDCWD, "/proc", kClone)));
  if (!tree) GTEST_SKIP() << "needs the right to mount";
  const UniqueFd file(openat(tree.get(), "version", O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(file);
  EXPECT_TRUE(absl::IsNotFound(FileSystemOf(file.get()).status()));
}

TEST(FileSystemTest, WhatSeveralMachinesMaySee) {
  for (const char* type : {"nfs", "nfs4", "lustre", "gpfs", "ceph", "beegfs", "cifs", "smb3",
                           "fuse", "fuse.sshfs", "fuse.glusterfs", "9p", "virtiofs", "wekafs"}) {
    EXPECT_TRUE(IsShared(type)) << type;
  }
  for (const char* type : {"ext4", "xfs", "btrfs", "zfs", "overlay", "tmpfs", "fuseblk", "f2fs"}) {
    EXPECT_FALSE(IsShared(type)) << type;
  }
}

}  // namespace
}  // namespace dtrain::os
