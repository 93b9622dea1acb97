// SPDX-License-Identifier: Apache-2.0
// J1 to J6, H4: nothing counts before it is on disk, and a disk that is full holds nobody up for
// ever.
#include "launcher/detached/journal.h"

#include <map>
#include <vector>

#include "tests/component/detached/disk_fixture.h"
#include "tests/support/no_threads.h"

namespace dtrain::detached {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class JournalTest : public JournalDiskTest {};

TEST_F(JournalTest, WhatIsDoneIsInTheFile) {
  const std::string path = Create(dir_);
  auto journal = Open(path);
  uint64_t next = 0;
  for (uint64_t generation = 1; generation <= 100; ++generation) {
    ASSERT_TRUE(journal
                    ->Append(Generation(generation),
                             [&, generation] {
                               EXPECT_EQ(generation, ++next);  // in order
                               EXPECT_GE(GenerationIn(path), generation);
                             })
                    .ok());
    EXPECT_EQ(journal->state().launcher().generation(), generation);
  }
  EXPECT_EQ(GenerationIn(path), 0);  // nothing before the loop turns
  RunUntil([&] { return next == 100; });
  EXPECT_THAT(troubles_, IsEmpty());
}

TEST_F(JournalTest, AFlushWaitsForAllThatWasAppended) {
  const std::string path = Create(dir_);
  auto journal = Open(path);
  int flushed = 0;
  journal->Flush([&] { ++flushed; });  // nothing is on its way
  RunUntil([&] { return flushed == 1; });
  std::vector<int> order;
  for (uint64_t generation = 1; generation <= 50; ++generation) {
    ASSERT_TRUE(journal->Append(Generation(generation), [&] { order.push_back(1); }).ok());
    journal->Flush([&, generation] {
      order.push_back(2);
      EXPECT_GE(GenerationIn(path), generation);
      ++flushed;
    });
    // Some find the last record in the queue, some with the thread.
    if (generation % 3 == 0) loop_.context().run_one_for(std::chrono::milliseconds(1));
  }
  RunUntil([&] { return flushed == 51; });
  ASSERT_EQ(order.size(), 100u);
  for (size_t i = 0; i < order.size(); ++i) EXPECT_EQ(order[i], 1 + static_cast<int>(i % 2)) << i;
}

TEST_F(JournalTest, GoesOnAfterItsLauncher) {
  const std::string path = Create(dir_);
  Write(*Open(path), Generation(1));
  auto journal = Open(path);
  EXPECT_EQ(journal->state().launcher().generation(), 1);
  Write(*journal, Generation(2));
  EXPECT_FALSE(journal->Append(Begins(), [] { FAIL(); }).ok());  // of generation 1
  journal.reset();
  EXPECT_EQ(GenerationIn(path), 2);
}

TEST_F(JournalTest, OutOfOrderNothingIsWritten) {
  const std::string path = Create(dir_);
  auto journal = Open(path);
  Write(*journal, Generation(5));
  const std::string before = ReadFile(path);
  const absl::Status illegal = journal->Append(Generation(5), [] { FAIL(); });
  EXPECT_EQ(illegal.code(), absl::StatusCode::kInvalidArgument);
  const absl::Status long_one =
      journal->Append(Generation(6, std::string(20 << 20, 'x')), [] { FAIL(); });
  EXPECT_EQ(long_one.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(journal->state().launcher().generation(), 5);
  loop_.context().run_for(std::chrono::milliseconds(1));
  EXPECT_EQ(ReadFile(path), before);
}

TEST_F(JournalTest, ATornTailIsCut) {
  const std::string path = Create(dir_);
  Write(*Open(path), Generation(1));
  const std::string whole = ReadFile(path);
  WriteFile(path, whole + whole.substr(0, 20));
  auto opened = JournalFile::Open(path);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_THAT(opened->second.warnings, ElementsAre(HasSubstr("the last 20 bytes")));
  EXPECT_EQ(ReadFile(path), whole);
  Write(*Open(path), Generation(2));
  EXPECT_EQ(GenerationIn(path), 2);
}

// H4
TEST_F(JournalTest, OnAFullDiskNothingIsDoneUntilThereIsRoom) {
  const std::string place = SmallDisk(64 << 10);
  if (place.empty()) GTEST_SKIP() << "needs root, to mount a small file system";
  const std::string path = Create(place);
  auto journal = Open(path);
  Write(*journal, Generation(1));
  Fill(place);
  std::vector<int> done;
  const std::string large(30 << 10, 'h');
  ASSERT_TRUE(journal->Append(Generation(2, large), [&] { done.push_back(2); }).ok());
  RunUntil([&] { return !troubles_.empty(); });
  EXPECT_THAT(std::string(troubles_[0].message()), HasSubstr("No space left on device"));
  EXPECT_TRUE(journal->trouble_since().has_value());
  // What comes meanwhile waits, too; what is there stays readable.
  ASSERT_TRUE(journal->Append(Generation(3), [&] { done.push_back(3); }).ok());
  EXPECT_EQ(GenerationIn(path), 1);
  loop_.context().run_for(kJournalRetry + std::chrono::milliseconds(100));
  EXPECT_THAT(done, IsEmpty());
  EXPECT_EQ(GenerationIn(path), 1);
  MakeRoom(place);
  RunUntil([&] { return done.size() == 2; });
  EXPECT_THAT(done, ElementsAre(2, 3));
  EXPECT_EQ(GenerationIn(path), 3);
  ASSERT_EQ(troubles_.size(), 2);  // told once, and once that it is over
  EXPECT_TRUE(troubles_[1].ok());
  EXPECT_FALSE(journal->trouble_since().has_value());
  journal.reset();
}

// H14
TEST_F(JournalTest, ALimitOfFileSizesIsAFullDisk) {
  const std::string path = Create(dir_);
  auto journal = Open(path);
  rlimit usual{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &usual), 0);
  const rlimit low{std::filesystem::file_size(path) + 10, usual.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  bool done = false;
  ASSERT_TRUE(journal->Append(Generation(1, "a host"), [&] { done = true; }).ok());
  RunUntil([&] { return !troubles_.empty(); });
  EXPECT_THAT(std::string(troubles_[0].message()), HasSubstr("File too large"));
  EXPECT_EQ(GenerationIn(path), 0);  // and no half of it
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &usual), 0);
  RunUntil([&] { return done; });
  EXPECT_EQ(GenerationIn(path), 1);
}

// What is written to a file without a name is lost with the launcher.
TEST_F(JournalTest, ARemovedFileIsTrouble) {
  const std::string path = Create(dir_);
  auto journal = Open(path);
  std::filesystem::remove(path);
  ASSERT_TRUE(journal->Append(Generation(1), [] { FAIL(); }).ok());
  RunUntil([&] { return !troubles_.empty(); });
  EXPECT_THAT(std::string(troubles_[0].message()), HasSubstr("was removed"));
}

TEST_F(JournalTest, WithoutAThreadTheLoopWrites) {
  const std::string path = Create(dir_);
  auto journal = Open(path);
  const NoThreads none;
  Write(*journal, Generation(1));
  EXPECT_EQ(GenerationIn(path), 1);
}

TEST_F(JournalTest, ALongOneIsMadeShort) {
  const std::string path = Create(dir_);
  const uint64_t most = 4000;
  auto journal = Open(path, most);
  const std::string host(100, 'h');
  for (uint64_t generation = 1; generation <= 200; ++generation) {
    Write(*journal, Generation(generation, host));
    ASSERT_LE(std::filesystem::file_size(path), most + 200);
    ASSERT_EQ(GenerationIn(path), generation);
  }
  // 200 records of 120 bytes and more.
  EXPECT_FALSE(std::filesystem::exists(path + ".new"));
  auto again = Open(path, most);
  EXPECT_EQ(again->state().SerializeAsString(), journal->state().SerializeAsString());
}

TEST_F(JournalTest, AStateThatIsLongIsNotCopiedForEachRecord) {
  const std::string path = Create(dir_);
  auto journal = Open(path, 100);
  uint64_t generation = 0;
  std::map<ino_t, int> files;
  for (int i = 0; i < 64; ++i) {
    Write(*journal, Generation(++generation, std::string(200, 'h')));
    struct stat info;
    ASSERT_EQ(stat(path.c_str(), &info), 0);
    ++files[info.st_ino];
  }
  EXPECT_LT(files.size(), 45);  // a new file for each second record, at most
  EXPECT_EQ(GenerationIn(path), generation);
}

TEST_F(JournalTest, CompactionThatFailsLosesNothing) {
  const std::string path = Create(dir_);
  const uint64_t most = 2000;
  auto journal = Open(path, most);
  // Its draft cannot be made.
  std::filesystem::create_directories(path + ".new/in the way");
  uint64_t generation = 0;
  const auto write_some = [&] {
    for (int i = 0; i < 40; ++i) Write(*journal, Generation(++generation, std::string(100, 'h')));
  };
  write_some();
  EXPECT_GE(std::filesystem::file_size(path), 40 * 100);
  EXPECT_THAT(troubles_, testing::Not(IsEmpty()));
  EXPECT_TRUE(troubles_.back().ok());
  std::filesystem::remove_all(path + ".new");
  write_some();
  EXPECT_LE(std::filesystem::file_size(path), 5 * most);
  EXPECT_EQ(GenerationIn(path), generation);
}

// Another launcher, on a machine that does not see our lock, has put its own file in the place.
TEST_F(JournalTest, WhoWasReplacedIsTold) {
  const std::string path = Create(dir_);
  auto old = Open(path);
  Write(*old, Generation(1));
  auto successor = Open(path, 1);  // compacts at once
  Write(*successor, Generation(2));
  ASSERT_TRUE(old->Append(Generation(3), [] { FAIL(); }).ok());
  RunUntil([&] { return !troubles_.empty(); });
  EXPECT_THAT(std::string(troubles_[0].message()), HasSubstr("was removed"));
  EXPECT_EQ(GenerationIn(path), 2);
}

TEST_F(JournalTest, DestroyedInACallback) {
  auto journal = Open(Create(dir_));
  bool second = false;
  ASSERT_TRUE(journal->Append(Generation(1), [&] { journal.reset(); }).ok());
  ASSERT_TRUE(journal->Append(Generation(2), [&] { second = true; }).ok());
  RunUntil([&] { return journal == nullptr; });
  EXPECT_FALSE(second);
}

}  // namespace
}  // namespace dtrain::detached
