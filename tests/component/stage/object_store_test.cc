// SPDX-License-Identifier: Apache-2.0
#include "agent/stage/object_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace dtrain::staged {
namespace {

namespace fs = std::filesystem;
using manifest::File;

class ObjectStoreTest : public testing::Test {
 protected:
  ObjectStoreTest() {
    std::string folder = absl::StrCat(testing::TempDir(), "/storeXXXXXX");
    folder_ = mkdtemp(folder.data());
    fs::create_directory(folder_ / "tree");
    tree_.Reset(open((folder_ / "tree").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }
  ~ObjectStoreTest() override { fs::remove_all(folder_); }

  ObjectStore Store() { return *ObjectStore::Open(folder_ / "stage"); }
  static File FileOf(const std::string& content) {
    return {File::Kind::kData, "f", content.size(), manifest::HashOf(content), ""};
  }
  static void Put(ObjectStore& store, const std::string& content) {
    auto incoming = store.Receive(FileOf(content));
    ASSERT_TRUE(incoming.ok()) << incoming.status();
    ASSERT_TRUE(incoming->Add(content).ok());
    const absl::Status kept = incoming->Finish();
    ASSERT_TRUE(kept.ok()) << kept;
  }
  fs::path PathOf(const std::string& content) {
    const std::string hex = absl::BytesToHexString(manifest::HashOf(content));
    return folder_ / "stage" / "objects" / hex.substr(0, 2) / hex.substr(2);
  }
  absl::Status TakeOut(ObjectStore& store, const std::string& content) {
    fs::remove(folder_ / "tree" / "out");
    return store.TakeOut(FileOf(content), tree_.get(), "out");
  }
  std::string Out() {
    std::ostringstream text;
    text << std::ifstream(folder_ / "tree" / "out").rdbuf();
    return text.str();
  }
  size_t FilesInStore() {
    size_t files = 0;
    for (const auto& entry : fs::recursive_directory_iterator(folder_ / "stage")) {
      files += entry.is_regular_file() ? 1 : 0;
    }
    return files;
  }

  fs::path folder_;
  os::UniqueFd tree_;
};

TEST_F(ObjectStoreTest, WhatWasPutInComesOut) {
  ObjectStore store = Store();
  EXPECT_TRUE(absl::IsNotFound(TakeOut(store, "hello")));
  Put(store, "hello");
  ASSERT_TRUE(TakeOut(store, "hello").ok());
  EXPECT_EQ(Out(), "hello");
  ASSERT_TRUE(TakeOut(store, "").ok());
  EXPECT_EQ(Out(), "");
}

TEST_F(ObjectStoreTest, WhatAWorkerWritesIntoItsTreeDoesNotReachTheStore) {
  ObjectStore store = Store();
  Put(store, "hello");
  ASSERT_TRUE(TakeOut(store, "hello").ok());
  std::ofstream(folder_ / "tree" / "out") << "damage";
  ASSERT_TRUE(TakeOut(store, "hello").ok());
  EXPECT_EQ(Out(), "hello");
}

TEST_F(ObjectStoreTest, DamageIsFoundAndRemoved) {
  ObjectStore store = Store();
  Put(store, "hello");
  fs::permissions(PathOf("hello"), fs::perms::owner_write, fs::perm_options::add);
  std::ofstream(PathOf("hello")) << "hallo";
  EXPECT_TRUE(absl::IsNotFound(TakeOut(store, "hello")));
  EXPECT_FALSE(fs::exists(PathOf("hello")));
  EXPECT_FALSE(fs::exists(folder_ / "tree" / "out"));
  Put(store, "hello");
  EXPECT_TRUE(TakeOut(store, "hello").ok());
}

TEST_F(ObjectStoreTest, LinksFifosAndFoldersInItAreNoContents) {
  ObjectStore store = Store();
  Put(store, "hello");
  std::ofstream(folder_ / "secret") << "hello";
  fs::remove(PathOf("hello"));
  fs::create_symlink(folder_ / "secret", PathOf("hello"));
  EXPECT_TRUE(absl::IsNotFound(TakeOut(store, "hello")));
  EXPECT_TRUE(fs::exists(folder_ / "secret"));
  ASSERT_EQ(mkfifo(PathOf("hello").c_str(), 0600), 0);
  EXPECT_TRUE(absl::IsNotFound(TakeOut(store, "hello")));
  fs::create_directory(PathOf("hello"));
  EXPECT_TRUE(absl::IsNotFound(TakeOut(store, "hello")));
}

TEST_F(ObjectStoreTest, OtherBytesThanAnnouncedAreNotKept) {
  ObjectStore store = Store();
  auto other = store.Receive(FileOf("hello"));
  ASSERT_TRUE(other.ok());
  ASSERT_TRUE(other->Add("hallo").ok());
  EXPECT_TRUE(absl::IsDataLoss(other->Finish()));
  {
    auto longer = store.Receive(FileOf("hello"));
    ASSERT_TRUE(longer.ok());
    EXPECT_TRUE(absl::IsDataLoss(longer->Add("hello!")));
    auto shorter = store.Receive(FileOf("hello"));
    ASSERT_TRUE(shorter.ok());
    EXPECT_TRUE(absl::IsDataLoss(shorter->Finish()));
  }
  { const auto gone = std::move(other); }
  EXPECT_EQ(FilesInStore(), 0u);
  EXPECT_TRUE(absl::IsNotFound(TakeOut(store, "hello")));
}

TEST_F(ObjectStoreTest, KilledWhileItWrites) {
  const pid_t child = fork();
  if (child == 0) {
    ObjectStore store = Store();
    auto incoming = store.Receive(FileOf("hello"));
    (void)incoming->Add("hel").ok();
    raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  ObjectStore store = Store();
  EXPECT_TRUE(absl::IsNotFound(TakeOut(store, "hello")));
  EXPECT_EQ(FilesInStore(), 1u);  // the half
  for (const auto& entry : fs::recursive_directory_iterator(folder_ / "stage")) {
    if (!entry.is_regular_file()) continue;
    const timespec old[2] = {{1000, 0}, {1000, 0}};
    ASSERT_EQ(utimensat(AT_FDCWD, entry.path().c_str(), old, 0), 0);
  }
  ASSERT_TRUE(store.Trim(1 << 20).ok());
  EXPECT_EQ(FilesInStore(), 0u);
}

TEST_F(ObjectStoreTest, NoRoom) {
  const pid_t child = fork();
  if (child == 0) {
    (void)signal(SIGXFSZ, SIG_IGN);
    const rlimit small{3, 3};
    (void)setrlimit(RLIMIT_FSIZE, &small);
    ObjectStore store = Store();
    auto incoming = store.Receive(FileOf("hello"));
    _exit(incoming.ok() && !incoming->Add("hello").ok() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(ObjectStoreTest, TheLeastRecentlyUsedGoesFirst) {
  ObjectStore store = Store();
  const std::string one(8192, '1'), two(8192, '2'), three(8192, '3');
  for (const std::string& content : {one, two, three}) Put(store, content);
  const auto use = [&](const std::string& content, time_t when) {
    const timespec at[2] = {{when, 0}, {when, 0}};
    ASSERT_EQ(utimensat(AT_FDCWD, PathOf(content).c_str(), at, 0), 0);
  };
  use(one, 1000);
  use(two, 2000);
  use(three, 3000);
  ASSERT_TRUE(TakeOut(store, one).ok());  // used now
  ASSERT_TRUE(store.Trim(2 * 8192).ok());
  EXPECT_TRUE(fs::exists(PathOf(one)));
  EXPECT_FALSE(fs::exists(PathOf(two)));
  EXPECT_TRUE(fs::exists(PathOf(three)));
}

}  // namespace
}  // namespace dtrain::staged
