// SPDX-License-Identifier: Apache-2.0
#include "agent/stage/staging.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/loop/loop.h"
#include "common/manifest/sha256.h"

namespace dtrain::staged {
namespace {

namespace fs = std::filesystem;
using manifest::File;
using testing::ElementsAre;
using testing::HasSubstr;

class StagingTest : public testing::Test {
 protected:
  StagingTest() {
    std::string folder = absl::StrCat(testing::TempDir(), "/stagingXXXXXX");
    folder_ = mkdtemp(folder.data());
    setenv("XDG_CACHE_HOME", folder_.c_str(), 1);
    Again();
  }
  ~StagingTest() override {
    staging_.reset();
    fs::remove_all(folder_);
  }

  void Again() {
    missing_.clear();
    taken_ = 0;
    staged_.clear();
    failed_ = absl::OkStatus();
    Staging::Handlers handlers;
    handlers.on_missing = [this](std::vector<uint32_t> files) {
      missing_ = std::move(files);
      told_ = true;
    };
    handlers.on_taken = [this] { ++taken_; };
    handlers.on_staged = [this](const std::string& sha256) {
      staged_ = sha256;
      told_ = true;
    };
    handlers.on_failed = [this](const absl::Status& why) {
      failed_ = why;
      told_ = true;
    };
    staging_ = std::make_unique<Staging>(loop_, std::move(handlers));
  }
  static File FileOf(const std::string& path, const std::string& content) {
    return {File::Kind::kData, path, content.size(), manifest::HashOf(content), ""};
  }
  // Until it says something.
  void Begin(std::vector<File> files) {
    v1::StageTree tree;
    tree.set_manifest(*manifest::Format(files));
    tree.set_sha256(manifest::HashOf(tree.manifest()));
    BeginWith(tree);
  }
  void BeginWith(const v1::StageTree& tree) {
    told_ = false;
    staging_->Begin(tree);
    const TimePoint deadline = Clock::now() + std::chrono::seconds(30);
    while (!told_ && Clock::now() < deadline) {
      loop_.context().run_one_for(std::chrono::milliseconds(5));
    }
    EXPECT_TRUE(told_);
  }
  void Send(uint32_t file, const std::string& data, uint32_t inflated_size = 0) {
    v1::StagePieces pieces;
    v1::StagePiece& piece = *pieces.add_pieces();
    piece.set_file(file);
    piece.set_data(data);
    piece.set_inflated_size(inflated_size);
    staging_->Take(pieces);
  }
  std::string Read(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(staging_->path() + "/" + path).rdbuf();
    return text.str();
  }
  size_t Trees() {
    size_t trees = 0;
    const fs::path places = folder_ / "dtrain/stage/trees";
    if (!fs::exists(places)) return 0;
    for (const auto& place : fs::directory_iterator(places)) {
      for ([[maybe_unused]] const auto& tree : fs::directory_iterator(place)) ++trees;
    }
    return trees;
  }

  fs::path folder_;
  loop::Loop loop_;
  std::unique_ptr<Staging> staging_;
  std::vector<uint32_t> missing_;
  int taken_ = 0;
  bool told_ = false;
  std::string staged_;
  absl::Status failed_;
};

// In a cache that several users share, by XDG_CACHE_HOME or by mode.
TEST_F(StagingTest, FoldersThatOthersCanChangeAreNotUsed) {
  Begin({FileOf("a", "")});
  ASSERT_TRUE(staging_->is_done()) << failed_;
  ASSERT_TRUE(staging_->Remove().ok());
  const std::string stage = folder_ / "dtrain/stage";
  std::vector<std::string> all = {folder_ / "dtrain", stage, stage + "/objects", stage + "/trees"};
  all.push_back(TreesIn(stage));
  for (const std::string& each : all) {
    const auto expect_refused = [&](const char* why) {
      Again();
      Begin({FileOf("a", "")});
      EXPECT_TRUE(absl::IsPermissionDenied(failed_)) << each << ": " << failed_;
      EXPECT_THAT(std::string(failed_.message()), HasSubstr(each.substr(each.find("/dtrain"))));
      EXPECT_THAT(std::string(failed_.message()), HasSubstr(why));
      EXPECT_THAT(std::string(failed_.message()), HasSubstr("with XDG_CACHE_HOME"));
      EXPECT_FALSE(staging_->is_done());
    };
    struct stat before = {};
    ASSERT_EQ(stat(each.c_str(), &before), 0);
    EXPECT_EQ(before.st_mode & 07777, 0700u) << each;
    ASSERT_EQ(chmod(each.c_str(), 0777), 0);
    expect_refused("mode 0777");
    ASSERT_EQ(chmod(each.c_str(), 0700), 0);
    if (geteuid() == 0) {
      ASSERT_EQ(chown(each.c_str(), 65534, 65534), 0);
      expect_refused("belongs to user id 65534");
      ASSERT_EQ(chown(each.c_str(), 0, 0), 0);
    }
  }
  // Its own user may have opened them to readers.
  for (const std::string& each : all) ASSERT_EQ(chmod(each.c_str(), 0755), 0);
  Again();
  Begin({FileOf("a", "")});
  EXPECT_TRUE(staging_->is_done()) << failed_;
}

TEST_F(StagingTest, EachContentIsAskedForOnceAndKept) {
  std::vector<File> files = {FileOf("a", "one"),
                             FileOf("b/c", "one"),
                             FileOf("b/d", "two"),
                             FileOf("empty", ""),
                             {File::Kind::kLink, "l", 0, "", "b/c"}};
  files[2].kind = File::Kind::kProgram;
  Begin(files);
  EXPECT_THAT(missing_, ElementsAre(0, 2));
  Send(0, "on");
  Send(0, "e");
  Send(2, "two");
  EXPECT_EQ(taken_, 3);
  ASSERT_TRUE(staging_->is_done()) << failed_;
  EXPECT_EQ(Read("a"), "one");
  EXPECT_EQ(Read("l"), "one");
  EXPECT_EQ(Read("empty"), "");
  EXPECT_EQ(access((staging_->path() + "/b/d").c_str(), X_OK), 0);
  EXPECT_EQ(Trees(), 1u);
  ASSERT_TRUE(staging_->Remove().ok());
  EXPECT_EQ(Trees(), 0u);
  Again();
  Begin(files);
  EXPECT_TRUE(staging_->is_done());
}

TEST_F(StagingTest, ManyFiles) {
  std::vector<File> files;
  for (int i = 0; i < 1000; ++i) files.push_back(FileOf(absl::StrCat("d", i % 7, "/", i), "x"));
  Begin(files);
  EXPECT_EQ(missing_.size(), 1u);
  Send(missing_[0], "x");
  EXPECT_TRUE(staging_->is_done()) << failed_;
}

TEST_F(StagingTest, DeflatedPieces) {
  const std::string text(300000, 'x');
  std::string packed(1000, '\0');
  uLongf size = packed.size();
  ASSERT_EQ(compress(reinterpret_cast<Bytef*>(packed.data()), &size,
                     reinterpret_cast<const Bytef*>(text.data()), text.size()),
            Z_OK);
  packed.resize(size);
  Begin({FileOf("a", text)});
  Send(0, packed, 300000);
  EXPECT_TRUE(staging_->is_done()) << failed_;
  EXPECT_EQ(Read("a"), text);
}

// Each of these ends the staging with words that name the file, and leaves no tree.
TEST_F(StagingTest, WhatNoLauncherOfOursSends) {
  struct Case {
    uint32_t file;
    std::string data;
    uint32_t inflated_size;
    const char* why;
  };
  const Case cases[] = {
      {1, "two", 0, "not asked for"},
      {7, "two", 0, "not asked for"},
      {0, "", 0, "has no bytes"},
      {0, "onex", 0, "more of it than was announced"},
      {0, "eno", 0, "not those that were announced"},
      {0, "one", 3, "cannot be inflated"},
      {0, "one", 2 << 20, "longer than 1 MiB"},
  };
  for (const Case& c : cases) {
    Again();
    Begin({FileOf("a", "one"), FileOf("b", "one")});
    ASSERT_THAT(missing_, ElementsAre(0));
    Send(c.file, c.data, c.inflated_size);
    EXPECT_THAT(std::string(failed_.message()), HasSubstr(c.why));
    ASSERT_TRUE(staging_->Remove().ok());
    EXPECT_EQ(Trees(), 0u);
    // What was under way is not an error of its own.
    failed_ = absl::OkStatus();
    Send(0, "one");
    EXPECT_TRUE(failed_.ok());
  }
}

TEST_F(StagingTest, AnotherFileBeforeTheEndOfOne) {
  Begin({FileOf("a", "one"), FileOf("b", "two")});
  Send(0, "o");
  Send(1, "two");
  EXPECT_THAT(std::string(failed_.message()), HasSubstr("before the end of another"));
}

TEST_F(StagingTest, ListsThatAreNone) {
  v1::StageTree tree;
  tree.set_manifest("f 1 x ../a");
  tree.set_sha256("x");
  BeginWith(tree);
  EXPECT_THAT(std::string(failed_.message()), HasSubstr("not the one that was announced"));
  Again();
  tree.set_sha256(manifest::HashOf(tree.manifest()));
  BeginWith(tree);
  EXPECT_THAT(std::string(failed_.message()), HasSubstr("cannot be read"));
  Again();
  File one = FileOf("b", "one");
  one.size = 4;
  Begin({FileOf("a", "one"), one});
  EXPECT_THAT(std::string(failed_.message()), HasSubstr("one hash with two sizes"));
  Again();
  File empty = FileOf("a", "");
  empty.sha256 = manifest::HashOf("x");
  Begin({empty});
  EXPECT_THAT(std::string(failed_.message()), HasSubstr("a: an empty file with another hash"));
  EXPECT_EQ(Trees(), 1u);  // until it is removed
  EXPECT_FALSE(fs::exists(folder_ / "a"));
}

TEST_F(StagingTest, ALinkOutThroughALinkIsNotMade) {
  v1::StageTree tree;
  using std::string_literals::operator""s;
  tree.set_manifest("l here\0.\0l out\0here/here/../../..\0"s);
  tree.set_sha256(manifest::HashOf(tree.manifest()));
  BeginWith(tree);
  EXPECT_THAT(std::string(failed_.message()), HasSubstr("out is a symbolic link out of the tree"));
  EXPECT_EQ(Trees(), 0u);
}

TEST_F(StagingTest, PiecesBeforeAListAndASecondList) {
  Send(0, "x");
  EXPECT_THAT(std::string(failed_.message()), HasSubstr("not asked for"));
  Again();
  Begin({FileOf("a", "one")});
  Begin({FileOf("a", "one")});
  EXPECT_THAT(std::string(failed_.message()), HasSubstr("a second list"));
}

TEST_F(StagingTest, AFolderThatSomebodyMadeALinkIsNotFollowed) {
  Begin({FileOf("a", "one"), FileOf("b/c", "two")});
  ASSERT_THAT(missing_, ElementsAre(0, 1));
  fs::path tree;
  for (const auto& place : fs::directory_iterator(folder_ / "dtrain/stage/trees")) {
    for (const auto& each : fs::directory_iterator(place)) tree = each.path();
  }
  fs::create_directory(folder_ / "outside");
  fs::remove(tree / "b");
  fs::create_symlink(folder_ / "outside", tree / "b");
  Send(0, "one");
  Send(1, "two");
  EXPECT_THAT(std::string(failed_.message()), HasSubstr("b/c"));
  EXPECT_TRUE(fs::is_empty(folder_ / "outside"));
}

TEST_F(StagingTest, AStoreThatCannotBeMade) {
  fs::create_directories(folder_ / "dtrain");
  std::ofstream(folder_ / "dtrain/stage") << "x";
  Begin({FileOf("a", "one")});
  EXPECT_THAT(std::string(failed_.message()), HasSubstr("dtrain/stage is not a directory"));
}

}  // namespace
}  // namespace dtrain::staged
