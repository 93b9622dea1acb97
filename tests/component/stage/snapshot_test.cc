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
    folder_ = fs::canonical(mkdtemp(folder.data()));
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

TEST_F(SnapshotTest, FoldersThatNobodyAskedForAreNotRefused) {
  Write("train.py", "a");
  Write("venv/x", "b");
  std::string deep = "data";
  for (int i = 0; i < 30; ++i) deep += "/d";
  Write(deep + "/y", "c");
  options_.exclude = {"/data"};
  options_.include = {"venv/"};
  EXPECT_THAT(Paths(Take()), ElementsAre("train.py", "venv/x"));
  options_.include = {"/data"};
  EXPECT_THAT(Paths(Take()), ElementsAre(HasSubstr("folders deep")));
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
  // Nor for the sake of one above it.
  ASSERT_EQ(std::system(absl::StrCat("git init -q ", folder_.string()).c_str()), 0);
  EXPECT_THAT(std::string(Take().status().message()), HasSubstr("git does not list its files"));
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

// Commands in the .git of a tree that somebody else has packed.
TEST_F(SnapshotTest, NothingThatTheTreeNamesIsRun) {
  const std::string program = folder_ / "evil";
  const std::string ran = folder_ / "ran";
  std::ofstream(program) << "#!/bin/sh\necho \"$0 $*\" >>" << ran << "\nexec cat\n";
  ASSERT_EQ(chmod(program.c_str(), 0755), 0);
  const auto poison = [&](const std::string& at) {
    Git(at + "config core.fsmonitor " + program);
    Git(at + "config core.hooksPath " + (folder_ / "hooks").string());
    Git(at + "config core.sshCommand " + program);
    Git(at + "config core.pager " + program);
    Git(at + "config alias.status '!" + program + "'");
    Git(at + "config diff.external " + program);
    Git(at + "config diff.x.textconv " + program);
    Git(at + "config filter.x.clean " + program);
    Git(at + "config filter.x.required true");
    Git(at + "config filter.y=z.clean " + program);
    Git(at + "config filter.p.process " + program);
    if (!at.empty()) Git(at + "config filter.sub.clean " + program);
  };
  fs::create_directory(folder_ / "hooks");
  fs::copy(program, folder_ / "hooks" / "post-index-change");
  Write("train.py", "a");
  Write("model.py", "b");
  Write("data.py", "c");
  Git("init");
  Write("sub/lib.py", "d");
  Git("-C sub init");
  Git("-C sub add .");
  Git("-C sub commit -m x");
  Git("add .");
  Git("commit -m x");
  for (const std::string at : {"", "-C sub "}) {
    poison(at);
    const fs::path git = folder_ / "code" / (at.empty() ? "" : "sub") / ".git";
    std::ofstream(git / "info" / "attributes")
        << "train.py filter=x diff=x\nlib.py filter=sub\nmodel.py filter=y=z\ndata.py filter=p\n";
  }
  // As long, but newer than the index: git must read them.
  for (const char* file : {"train.py", "model.py", "data.py", "sub/lib.py"}) Write(file, "x");
  for (const bool has_equals : {true, false}) {
    if (!has_equals) Git("config --remove-section filter.y=z");
    fs::remove(ran);
    const auto snapshot = Take();
    EXPECT_THAT(Paths(snapshot), ElementsAre("data.py", "model.py", "sub/lib.py", "train.py"));
    EXPECT_FALSE(fs::exists(ran)) << std::ifstream(ran).rdbuf();
    // No flag of git can hold such a name, so that nothing is counted.
    EXPECT_THAT(snapshot->git,
                testing::MatchesRegex(has_equals ? "[0-9a-f]{7,}" : "[0-9a-f]{7,} \\+ 3 changed"));
  }
}

// A partial clone fetches missing objects, by a command in its configuration.
TEST_F(SnapshotTest, NothingIsFetched) {
  const std::string program = folder_ / "evil";
  const std::string ran = folder_ / "ran";
  std::ofstream(program) << "#!/bin/sh\necho \"$0 $*\" >>" << ran << "\n";
  ASSERT_EQ(chmod(program.c_str(), 0755), 0);
  Write("train.py", "a");
  Git("init");
  Git("add .");
  Git("commit -m x");
  Git("config core.repositoryFormatVersion 1");
  Git("config extensions.partialClone origin");
  Git("config remote.origin.promisor true");
  Git("config remote.origin.url " + folder_.string());
  Git("config remote.origin.uploadpack " + program);
  fs::remove_all(folder_ / "code/.git/objects");
  fs::create_directory(folder_ / "code/.git/objects");
  EXPECT_THAT(Paths(Take()), ElementsAre("train.py"));
  EXPECT_FALSE(fs::exists(ran)) << std::ifstream(ran).rdbuf();
}

// A clone may contain a folder that looks like a bare repository, with a config.
TEST_F(SnapshotTest, ABareRepositoryInTheTreeIsNotAsked) {
  Write("train.py", "a");
  Git("init");
  Git("init --bare buried");
  Git("-C buried config core.bare false");
  Git("-C buried config core.worktree ..");
  Write("buried/.env", "SECRET=1");
  Write(".gitignore", ".env\n");
  Write("buried/info/exclude", "!.env\n");
  options_.directory += "/buried";
  EXPECT_THAT(Paths(Take()), testing::Contains(HasSubstr("git does not list its files")));
}

TEST_F(SnapshotTest, VariablesOfGitNameNoOtherRepository) {
  Write("train.py", "a");
  Write(".gitignore", ".env\n");
  Write(".env", "SECRET=1");
  Git("init");
  const std::string other = folder_ / "other";
  ASSERT_EQ(std::system(absl::StrCat("git init -q ", other).c_str()), 0);
  setenv("GIT_DIR", (other + "/.git").c_str(), 1);
  setenv("GIT_INDEX_FILE", "/nowhere", 1);
  setenv("GIT_CEILING_DIRECTORIES", folder_.c_str(), 1);
  Write("sub/x", "y");
  options_.directory += "/sub";
  EXPECT_THAT(Paths(Take()), ElementsAre("x"));
  unsetenv("GIT_DIR");
  unsetenv("GIT_INDEX_FILE");
  unsetenv("GIT_CEILING_DIRECTORIES");
}

// git looks above the folder itself, not above a link to it.
TEST_F(SnapshotTest, ALinkToAFolderOfARepository) {
  Write(".gitignore", ".env\n");
  Write("sub/train.py", "a");
  Write("sub/.env", "SECRET=1");
  Git("init");
  fs::create_directory_symlink("code/sub", folder_ / "link");
  options_.directory = folder_ / "link";
  EXPECT_THAT(Paths(Take()), ElementsAre("train.py"));
}

TEST_F(SnapshotTest, ARepositoryAboveOfSomebodyElseIsNotUsed) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to give a folder away";
  Write("train.py", "a");
  Write("sub/.env", "SECRET=1");
  Write("sub/model.py", "b");
  Write(".gitignore", ".env\n");
  Git("init");
  options_.directory += "/sub";
  EXPECT_THAT(Paths(Take()), ElementsAre("model.py"));
  constexpr uid_t kStranger = 12345;
  for (const fs::path& given : {folder_ / "code", folder_ / "code" / ".git"}) {
    ASSERT_EQ(lchown(given.c_str(), kStranger, kStranger), 0);
    const auto snapshot = Take();
    EXPECT_THAT(Paths(snapshot), ElementsAre(".env", "model.py"));
    EXPECT_EQ(snapshot->git, "");
    EXPECT_THAT(snapshot->warnings,
                ElementsAre(HasSubstr("which belongs to another user"), HasSubstr("copies .env")));
    // git's own way to trust it.
    setenv("GIT_CONFIG_COUNT", "1", 1);
    setenv("GIT_CONFIG_KEY_0", "safe.directory", 1);
    setenv("GIT_CONFIG_VALUE_0", (folder_ / "code").c_str(), 1);
    EXPECT_THAT(Paths(Take()), ElementsAre("model.py"));
    setenv("GIT_CONFIG_VALUE_0", "", 1);
    EXPECT_THAT(Paths(Take()), ElementsAre(".env", "model.py"));
    for (const char* name : {"GIT_CONFIG_COUNT", "GIT_CONFIG_KEY_0", "GIT_CONFIG_VALUE_0"}) {
      unsetenv(name);
    }
    ASSERT_EQ(lchown(given.c_str(), 0, 0), 0);
  }
  // To root also the caller of sudo.
  ASSERT_EQ(lchown((folder_ / "code").c_str(), kStranger, kStranger), 0);
  setenv("SUDO_UID", "12345", 1);
  EXPECT_THAT(Paths(Take()), ElementsAre("model.py"));
  unsetenv("SUDO_UID");
  // All of it is another user's: git decides.
  for (const fs::path& given : {folder_ / "code", folder_ / "code" / "sub"}) {
    ASSERT_EQ(lchown(given.c_str(), kStranger, kStranger), 0);
  }
  EXPECT_THAT(Paths(Take()), ElementsAre(HasSubstr("git does not list its files")));
}

// In the index "lib" is a folder; on disk it is a link, which .gitignore hides.
TEST_F(SnapshotTest, NothingBehindALinkIsRead) {
  fs::create_directory(folder_ / "outside");
  std::ofstream(folder_ / "outside" / "key") << "secret";
  std::ofstream(folder_ / "outside" / "nested") << "secret";
  Write("train.py", "a");
  Write("lib/key", "public");
  Git("init");
  Git("add .");
  Git("update-index --add --cacheinfo 160000,1234567890123456789012345678901234567890,lib/nested");
  fs::remove_all(folder_ / "code" / "lib");
  fs::remove(folder_ / "outside" / "nested");
  fs::create_directory(folder_ / "outside" / "nested");
  std::ofstream(folder_ / "outside" / "nested" / "deep") << "secret";
  fs::create_directory_symlink("../outside", folder_ / "code" / "lib");
  Write(".gitignore", "lib\n");
  EXPECT_THAT(Paths(Take()), ElementsAre(".gitignore", "train.py"));
  // Replaced after it was read.
  fs::remove(folder_ / "code" / "lib");
  Write("lib/key", "public");
  const auto snapshot = Take();
  ASSERT_THAT(Paths(snapshot), ElementsAre(".gitignore", "lib/key", "train.py"));
  fs::remove_all(folder_ / "code" / "lib");
  fs::create_directory_symlink("../outside", folder_ / "code" / "lib");
  EXPECT_FALSE(Contents(*snapshot).Read(1, 0, 6).ok());
}

TEST_F(SnapshotTest, ALinkOutThroughALinkIsRefused) {
  Write("train.py", "a");
  fs::create_symlink(".", folder_ / "code" / "here");
  ASSERT_TRUE(Take().ok());
  fs::create_symlink("here/here/../cache", folder_ / "code" / "out");
  ASSERT_TRUE(fs::is_directory(folder_ / "code" / "out"));
  EXPECT_THAT(std::string(Take().status().message()),
              HasSubstr("out is a symbolic link out of the tree (to here/here/../cache)"));
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
