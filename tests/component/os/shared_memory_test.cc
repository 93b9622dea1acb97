// SPDX-License-Identifier: Apache-2.0
#include "common/os/shared_memory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/os/process_tree.h"
#include "common/os/unique_fd.h"

namespace dtrain::os {
namespace {

using Use = SharedMemoryUse;
using testing::IsEmpty;
using testing::SizeIs;

class SharedMemoryTest : public testing::Test {
 protected:
  ~SharedMemoryTest() override {
    for (const std::string& name : names_) (void)unlink(Path(name).c_str());
  }
  static std::string Path(const std::string& name) { return absl::StrCat("/dev/shm/", name); }
  // Whatever its end.
  std::string Name(const std::string& end) {
    names_.push_back(absl::StrCat("test\n", getpid(), " ", end));
    return names_.back();
  }
  UniqueFd Make(const std::string& name, size_t bytes = 4096) {
    UniqueFd fd(open(Path(name).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    EXPECT_TRUE(fd);
    EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
    return fd;
  }
  static std::vector<NamedSharedMemory> Called(const std::string& name) {
    std::vector<NamedSharedMemory> all = ListSharedMemory(geteuid());
    std::erase_if(all, [&](const auto& each) { return each.name != name; });
    return all;
  }
  static bool Exists(const std::string& name) {
    struct stat status;
    return lstat(Path(name).c_str(), &status) == 0;
  }
  std::vector<std::string> names_;
};

TEST_F(SharedMemoryTest, AnObjectIsUsedWhileItIsOpenOrMapped) {
  const std::string name = Name("used");
  UniqueFd fd = Make(name);
  ASSERT_THAT(Called(name), SizeIs(1));
  const NamedSharedMemory object = Called(name)[0];
  EXPECT_TRUE(SharedMemoryOf(getpid()).open.contains(object.object));
  EXPECT_FALSE(SharedMemoryOf(getpid()).mapped.contains(object.object));
  EXPECT_EQ(UseOf(object, geteuid()), Use::kSomebody);
  for (const int protection : {PROT_READ, PROT_READ | PROT_WRITE}) {
    if (!fd) {
      fd.Reset(open(Path(name).c_str(), O_RDWR | O_CLOEXEC));
    }
    void* const memory = mmap(nullptr, 4096, protection, MAP_SHARED, fd.get(), 0);
    ASSERT_NE(memory, MAP_FAILED);
    fd.Reset();
    EXPECT_TRUE(SharedMemoryOf(getpid()).mapped.contains(object.object));
    EXPECT_FALSE(SharedMemoryOf(getpid()).open.contains(object.object));
    EXPECT_EQ(RemoveUnused(object, geteuid()), Use::kSomebody);
    EXPECT_TRUE(Exists(name));
    munmap(memory, 4096);
  }
  EXPECT_FALSE(SharedMemoryOf(getpid()).mapped.contains(object.object));
  EXPECT_EQ(UseOf(object, geteuid()), Use::kNobody);
  EXPECT_EQ(RemoveUnused(object, geteuid()), Use::kNobody);
  EXPECT_FALSE(Exists(name));
  EXPECT_EQ(RemoveUnused(object, geteuid()), Use::kGone);
}

TEST_F(SharedMemoryTest, WhatHasTheNameMeanwhileStays) {
  const std::string name = Name("swapped");
  (void)Make(name);
  const NamedSharedMemory object = Called(name)[0];
  const std::string other = Name("other");
  (void)Make(other);
  ASSERT_EQ(rename(Path(other).c_str(), Path(name).c_str()), 0);
  EXPECT_EQ(RemoveUnused(object, geteuid()), Use::kGone);
  EXPECT_TRUE(Exists(name));
  ASSERT_EQ(unlink(Path(name).c_str()), 0);
  ASSERT_EQ(symlink("/etc/hostname", Path(name).c_str()), 0);
  EXPECT_EQ(RemoveUnused(object, geteuid()), Use::kGone);
  ASSERT_EQ(unlink(Path(name).c_str()), 0);
  ASSERT_EQ(mkfifo(Path(name).c_str(), 0600), 0);
  EXPECT_EQ(RemoveUnused(object, geteuid()), Use::kGone);
  EXPECT_THAT(Called(name), IsEmpty()) << "a pipe is no shared memory";
}

TEST_F(SharedMemoryTest, ThatOfAnotherUserStays) {
  const std::string name = Name("strange");
  (void)Make(name);
  const NamedSharedMemory object = Called(name)[0];
  EXPECT_EQ(RemoveUnused(object, geteuid() + 1), Use::kGone);
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to give it away";
  ASSERT_EQ(chown(Path(name).c_str(), 12345, 12345), 0);
  EXPECT_THAT(Called(name), IsEmpty());
  EXPECT_EQ(RemoveUnused(object, 0), Use::kGone);
  // A second name in our folder makes it nobody else's.
  const std::string link_name = Name("link");
  ASSERT_EQ(link(Path(name).c_str(), Path(link_name).c_str()), 0);
  EXPECT_THAT(Called(link_name), IsEmpty());
  EXPECT_TRUE(Exists(name));
}

TEST_F(SharedMemoryTest, BothNamesOfAnObjectGo) {
  const std::string name = Name("one"), second = Name("two");
  (void)Make(name);
  ASSERT_EQ(link(Path(name).c_str(), Path(second).c_str()), 0);
  EXPECT_EQ(Called(name)[0].object, Called(second)[0].object);
  const std::vector<NamedSharedMemory> both = {Called(name)[0], Called(second)[0]};
  EXPECT_EQ(Describe(both), "1 object, 0 kB");
  for (const NamedSharedMemory& each : both) EXPECT_EQ(RemoveUnused(each, geteuid()), Use::kNobody);
  EXPECT_FALSE(Exists(name) || Exists(second));
}

TEST_F(SharedMemoryTest, SystemVSegments) {
  const int id = shmget(IPC_PRIVATE, 1 << 20, IPC_CREAT | 0600);
  ASSERT_GE(id, 0);
  const auto found = [&] {
    std::vector<NamedSharedMemory> all = ListSharedMemory(geteuid());
    std::erase_if(all, [&](const auto& each) {
      return !each.object.is_segment || each.object.number != static_cast<uint64_t>(id);
    });
    return all;
  };
  ASSERT_THAT(found(), SizeIs(1));
  const NamedSharedMemory segment = found()[0];
  EXPECT_EQ(segment.maker, getpid());
  void* const memory = shmat(id, nullptr, 0);
  EXPECT_EQ(RemoveUnused(segment, geteuid()), Use::kSomebody);
  shmdt(memory);
  NamedSharedMemory older = segment;  // whose id has come again
  --older.object.place;
  EXPECT_EQ(RemoveUnused(older, geteuid()), Use::kGone);
  EXPECT_EQ(RemoveUnused(segment, geteuid()), Use::kNobody);
  EXPECT_THAT(found(), IsEmpty());
}

TEST_F(SharedMemoryTest, Records) {
  const auto ours = [](const std::string& mark) {
    std::vector<RecordedSharedMemory> all = ReadSharedMemoryRecords(geteuid());
    std::erase_if(all, [&](const auto& each) {
      return each.path.find(absl::StrCat("dtrain-left.", mark.substr(0, mark.find(':')), ".")) ==
             std::string::npos;
    });
    return all;
  };
  const std::set<SharedMemory> objects = {{false, 27, 5}, {true, 1700000000, 3}};
  const std::string living = ProcessMark(getpid()), dead = "1999999999:5:no-such-boot";
  for (const std::string& mark : {living, dead}) {
    const SharedMemoryRecord record(mark);
    record.Write(objects);
    ASSERT_THAT(ours(mark), SizeIs(1));
    EXPECT_EQ(ours(mark)[0].objects, objects);
    EXPECT_EQ(ours(mark)[0].lives, mark == living);
    EXPECT_EQ(ours(mark)[0].owner, geteuid());
    for (const NamedSharedMemory& each : ListSharedMemory(geteuid())) {
      EXPECT_EQ(each.name.find("dtrain-left."), std::string::npos);
    }
    record.Write({});
    EXPECT_THAT(ours(mark), IsEmpty());
  }
}

// Anybody can make files that look like them.
class PlantedRecordsTest : public SharedMemoryTest {
 protected:
  static constexpr size_t kMost = 64;  // of one user

  // Not this user, if we are root: tests that run meanwhile have records, too.
  static uid_t Somebody(uid_t number = 0) {
    return geteuid() == 0 ? 70'000'001 + 4 * static_cast<uid_t>(getpid()) + number : geteuid();
  }
  std::string Plant(size_t objects, uid_t owner = Somebody(), const std::string& more = "") {
    names_.push_back(absl::StrCat(Prefix(), names_.size()));
    std::ofstream file(Path(names_.back()));
    // Of another PID namespace, so that no reap elsewhere judges it, and of objects that are not.
    file << "1999999999:5:no-such-boot elsewhere\n" << more;
    for (size_t i = 0; i < objects; ++i) file << "file 0 " << i << "\n";
    file.close();
    EXPECT_EQ(chown(Path(names_.back()).c_str(), owner, static_cast<gid_t>(-1)), 0);
    return Path(names_.back());
  }
  // Of those that are planted.
  static std::vector<RecordedSharedMemory> Read(std::optional<uid_t> owner = Somebody()) {
    std::vector<RecordedSharedMemory> all = ReadSharedMemoryRecords(owner);
    std::erase_if(all, [](const auto& each) { return !each.path.starts_with(Path(Prefix())); });
    return all;
  }
  static std::string Prefix() { return absl::StrCat("dtrain-left.", getpid(), ".planted"); }
};

TEST_F(PlantedRecordsTest, OneWithTwoNamesIsNotRead) {
  const std::string path = Plant(1);
  EXPECT_THAT(Read(), SizeIs(1));
  names_.push_back(absl::StrCat(Prefix(), "link"));
  ASSERT_EQ(link(path.c_str(), Path(names_.back()).c_str()), 0);
  EXPECT_THAT(Read(), IsEmpty());
}

TEST_F(PlantedRecordsTest, OneThatIsLongerThanOursIsNotRead) {
  Plant(1, Somebody(), std::string(64 << 10, '\n'));
  EXPECT_THAT(Read(), IsEmpty());
  Plant(4097);
  EXPECT_THAT(Read(), IsEmpty());
}

TEST_F(PlantedRecordsTest, ThoseOfOneUserLeaveRoomForOthers) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give records away";
  for (const uid_t other : {1, 2}) Plant(1, Somebody(other));  // in a list they may be the last
  for (size_t i = 0; i < 2 * kMost; ++i) Plant(1);
  EXPECT_THAT(Read(), SizeIs(kMost));
  EXPECT_THAT(Read(std::nullopt), SizeIs(kMost + 2));
}

TEST_F(PlantedRecordsTest, OneUsersObjectsAreBounded) {
  for (int i = 0; i < 2; ++i) Plant(3000);
  ASSERT_THAT(Read(), SizeIs(1));
  EXPECT_THAT(Read()[0].objects, SizeIs(3000)) << "it is whole, as it is removed after its objects";
}

TEST_F(PlantedRecordsTest, OfManyObjectsTheNewestAreWritten) {
  const std::string mark = absl::StrCat(getpid(), ":planted:no-such-boot");
  names_.push_back(Prefix());
  for (const uint64_t first : {uint64_t{1}, uint64_t{1} << 63}) {
    std::set<SharedMemory> objects;
    for (uint64_t i = 0; i < 5000; ++i) objects.insert({false, first, first + i});
    SharedMemoryRecord(mark).Write(objects);
    ASSERT_EQ(chown(Path(Prefix()).c_str(), Somebody(), static_cast<gid_t>(-1)), 0);
    ASSERT_THAT(Read(), SizeIs(1));
    const std::set<SharedMemory> written = Read()[0].objects;
    EXPECT_GE(written.size(), 1000u);
    EXPECT_LE(written.size(), 4096u);
    EXPECT_EQ(*written.rbegin(), *objects.rbegin());
    EXPECT_EQ(written.begin()->number, first + 5000 - written.size());
  }
}

}  // namespace
}  // namespace dtrain::os
