// SPDX-License-Identifier: Apache-2.0
#include "launcher/stage/snapshot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/manifest/sha256.h"
#include "launcher/stage/contents.h"
#include "launcher/stage/hash_cache.h"

namespace dtrain::stage {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

class SnapshotTest : public testing::Test {
 protected:
  SnapshotTest() {
    std::string folder = absl::StrCat(testing::TempDir(), "/snapXXXXXX");
    folder_ = mkdtemp(folder.data());
    fs::create_directory(folder_ / "cache");
    fs::create_directory(folder_ / "code");
    options_.directory = folder_ / "code";
  }
  ~SnapshotTest() override { fs::remove_all(folder_); }

  void Write(const std::string& path, const std::string& text) {
    const fs::path file = folder_ / "code" / path;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  absl::StatusOr<Snapshot> Take() { return TakeSnapshot(options_, folder_ / "cache"); }
  static std::vector<std::string> Paths(const absl::StatusOr<Snapshot>& snapshot) {
    std::vector<std::string> paths;
    if (!snapshot.ok()) return {std::string(snapshot.status().message())};
    for (const auto& file : snapshot->files) paths.push_back(file.path);
    return paths;
  }
  void Git(const std::string& words) {
    const std::string command =
        absl::StrCat("git -C ", options_.directory, " -c user.name=a -c user.email=a@b ", words,
                     " >/dev/null 2>&1");
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
  }

  fs::path folder_;
  Options options_;
};

TEST_F(SnapshotTest, AllButTheUsualCaches) {
  Write("train.py", "a");
  Write("src/model.py", "b");
  Write("venv/x", "c");
  Write("src/__pycache__/model.pyc", "d");
  Write("node_modules/x/y", "e");
  EXPECT_THAT(Paths(Take()), ElementsAre("src/model.py", "train.py"));
  Write(".dtrainignore", "*.py\n!/train.py\n");
  EXPECT_THAT(Paths(Take()), ElementsAre(".dtrainignore", "train.py"));
  options_.exclude = {".dtrainignore"};
  options_.include = {"venv/"};
  EXPECT_THAT(Paths(Take()), ElementsAre("train.py", "venv/x"));
}

TEST_F(SnapshotTest, OfAGitWorkTreeWhatGitWouldTrack) {
  Write("train.py", "a");
  Write(".gitignore", ".env\n");
  Write(".env", "SECRET=1");
  Git("init");
  Git("add train.py");
  Git("commit -m x");
  const auto snapshot = Take();
  EXPECT_THAT(Paths(snapshot), ElementsAre(".gitignore", "train.py"));
  EXPECT_THAT(snapshot->git, testing::MatchesRegex("[0-9a-f]{7,} \\+ 1 changed"));
  options_.include = {".env"};
  const auto with = Take();
  EXPECT_THAT(Paths(with), ElementsAre(".env", ".gitignore", "train.py"));
  EXPECT_THAT(with->warnings, ElementsAre(HasSubstr("--stage copies .env to all nodes")));
  // Tracked, and gone.
  fs::remove(folder_ / "code" / "train.py");
  EXPECT_THAT(Paths(Take()), ElementsAre(".env", ".gitignore"));
}

TEST_F(SnapshotTest, GitThatFailsIsNotPassedOver) {
  Write("train.py", "a");
  fs::create_directory(folder_ / "code" / ".git");
  const auto snapshot = Take();
  EXPECT_THAT(std::string(snapshot.status().message()), HasSubstr("git does not list its files"));
}

TEST_F(SnapshotTest, WhatIsNoFileIsRefusedByName) {
  Write("train.py", "a");
  fs::create_symlink("train.py", folder_ / "code" / "link");
  ASSERT_TRUE(Take().ok());
  fs::create_symlink("../cache", folder_ / "code" / "out");
  EXPECT_THAT(std::string(Take().status().message()),
              HasSubstr("out is a symbolic link out of the tree (to ../cache)"));
  fs::remove(folder_ / "code" / "out");
  fs::create_symlink("/etc", folder_ / "code" / "etc");
  EXPECT_THAT(std::string(Take().status().message()), HasSubstr("etc is an absolute symbolic"));
  fs::remove(folder_ / "code" / "etc");
  ASSERT_EQ(mkfifo((folder_ / "code" / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(std::string(Take().status().message()), HasSubstr("pipe is neither a file nor"));
  options_.exclude = {"pipe"};
  EXPECT_TRUE(Take().ok());
}

TEST_F(SnapshotTest, TooMuchNamesTheBiggest) {
  Write("small.py", "a");
  Write("data/big.bin", std::string(3000, 'x'));
  options_.most_bytes = 2000;
  const std::string why(Take().status().message());
  EXPECT_THAT(why, HasSubstr("has 2 files, 2.9 KiB; the limit is 2.0 KiB (--stage-limit)"));
  EXPECT_THAT(why, HasSubstr("\n  2.9 KiB  data/big.bin\n"));
}

TEST_F(SnapshotTest, AChangeIsSeenThoughHashesAreKept) {
  Write("train.py", "a");
  const timespec old[2] = {{1000, 0}, {1000, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, (folder_ / "code/train.py").c_str(), old, 0), 0);
  const auto one = Take();
  EXPECT_EQ(Take()->sha256, one->sha256);
  // As long, and with the same time: only the ctime tells.
  Write("train.py", "b");
  ASSERT_EQ(utimensat(AT_FDCWD, (folder_ / "code/train.py").c_str(), old, 0), 0);
  EXPECT_NE(Take()->sha256, one->sha256);
  Write("train.py", "a");
  EXPECT_EQ(Take()->sha256, one->sha256);
  ASSERT_EQ(chmod((folder_ / "code/train.py").c_str(), 0755), 0);
  EXPECT_NE(Take()->sha256, one->sha256);
}

TEST_F(SnapshotTest, HashesAreKeptOfFilesThatAreNotYoung) {
  Write("a", "a");
  struct stat status;
  ASSERT_EQ(stat((folder_ / "code/a").c_str(), &status), 0);
  const int64_t changed =
      static_cast<int64_t>(status.st_ctim.tv_sec) * 1'000'000'000 + status.st_ctim.tv_nsec;
  const std::string path = folder_ / "cache/hashes";
  const std::string hash(manifest::kHashBytes, 'h');
  HashCache young(path);
  young.Add(status, hash, changed + 1'999'999'999);
  young.Save();
  EXPECT_FALSE(HashCache(path).Find(status));
  HashCache old(path);
  old.Add(status, hash, changed + 2'000'000'000);
  old.Save();
  EXPECT_EQ(HashCache(path).Find(status), hash);
  struct stat other = status;
  other.st_ctim.tv_nsec ^= 1;
  EXPECT_FALSE(HashCache(path).Find(other));
  std::fstream(path, std::ios::in | std::ios::out) << "damage";
  EXPECT_FALSE(HashCache(path).Find(status));
}

TEST_F(SnapshotTest, ACopyDoesNotChangeWithTheTree) {
  Write("a", "first");
  Write("b", "first");
  Write("c", "other");
  const auto snapshot = Take();
  ASSERT_TRUE(snapshot.ok());
  Contents contents(*snapshot);
  ASSERT_TRUE(contents.Copy({folder_.string()}).ok());
  Write("c", "OTHER");
  fs::remove(folder_ / "code" / "b");
  EXPECT_EQ(*contents.Read(1, 1, 3), "irs");
  EXPECT_EQ(*contents.Read(2, 0, 5), "other");
  Contents of_tree(*snapshot);
  EXPECT_EQ(*of_tree.Read(2, 0, 5), "OTHER");
  EXPECT_FALSE(of_tree.Read(1, 0, 5).ok());
}

}  // namespace
}  // namespace dtrain::stage
