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

TEST(FileSystemTest, AtAPathTheNearestMountCounts) {
  constexpr absl::string_view kMounts =
      "22 1 8:1 / / rw shared:1 - ext4 /dev/root rw\n"
      "30 22 0:40 / /home rw,relatime shared:9 - nfs4 server:/home rw,vers=4.2\n"
      "31 30 0:41 / /home/a\\040b rw - tmpfs tmpfs rw\n"
      "32 22 0:42 / /mnt rw - tmpfs tmpfs rw\n"
      "33 32 0:43 / /mnt rw - lustre mds:/x rw\n"
      "broken\n";
  EXPECT_EQ(FileSystemAt(kMounts, "/"), "ext4");
  EXPECT_EQ(FileSystemAt(kMounts, "/homes/x"), "ext4");
  EXPECT_EQ(FileSystemAt(kMounts, "/home"), "nfs4");
  EXPECT_EQ(FileSystemAt(kMounts, "/home/al/run"), "nfs4");
  EXPECT_EQ(FileSystemAt(kMounts, "/home/a b/run"), "tmpfs");
  EXPECT_EQ(FileSystemAt(kMounts, "/mnt/x"), "lustre");
  EXPECT_EQ(FileSystemAt("", "/x"), "");
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
