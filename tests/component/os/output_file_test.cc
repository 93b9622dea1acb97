// SPDX-License-Identifier: Apache-2.0
#include "common/os/output_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace dtrain::os {
namespace {

using testing::HasSubstr;

constexpr uid_t kMallory = 4242;

// A sticky folder that all may write to, and one of ours.
class OutputFileTest : public testing::Test {
 protected:
  OutputFileTest() {
    char path[] = "/tmp/dtrain-output-XXXXXX";
    EXPECT_NE(mkdtemp(path), nullptr);
    dir_ = path;
    shared_ = dir_ + "/shared";
    own_ = dir_ + "/own";
    std::filesystem::create_directories(own_);
    std::filesystem::create_directories(shared_);
    EXPECT_EQ(chmod(shared_.c_str(), 01777), 0);
  }
  ~OutputFileTest() override { std::filesystem::remove_all(dir_); }

  static void Link(const std::string& target, const std::string& link, uid_t owner) {
    std::filesystem::create_symlink(target, link);
    ASSERT_EQ(lchown(link.c_str(), owner, owner), 0);
  }
  // Where PlaceOfFile leads: the path of its folder and the name, or the error.
  static std::string Place(const std::string& path) {
    const auto place = PlaceOfFile(path, "write it");
    if (!place.ok()) return std::string(place.status().message());
    return std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(place->folder.get()))
               .string() +
           "/" + place->name;
  }

  std::string dir_;
  std::string shared_;
  std::string own_;
};

TEST_F(OutputFileTest, LinksOfOursAndInFoldersOfOursAreFollowed) {
  Link("../own/file", shared_ + "/relative", geteuid());
  Link(own_ + "/file", shared_ + "/absolute", geteuid());
  Link("../own", shared_ + "/folder", geteuid());
  Link("missing/file", own_ + "/dangling", geteuid());
  EXPECT_EQ(Place(shared_ + "/relative"), own_ + "/file");
  EXPECT_EQ(Place(shared_ + "/absolute"), own_ + "/file");
  EXPECT_EQ(Place(shared_ + "/folder//./file"), own_ + "/file");
  EXPECT_EQ(Place(shared_ + "/../own/file"), own_ + "/file");
  EXPECT_THAT(Place(own_ + "/dangling"), HasSubstr("No such file"));
  EXPECT_THAT(Place(own_ + "/"), HasSubstr("Is a directory"));
  EXPECT_THAT(Place(shared_ + "/relative/file"), HasSubstr("No such file"));
  Link("loop", own_ + "/loop", geteuid());
  EXPECT_THAT(Place(own_ + "/loop"), HasSubstr("Too many levels"));
}

TEST_F(OutputFileTest, LinksThatOthersPlantedAreNot) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to make a file that is another user's";
  Link(own_ + "/file", shared_ + "/file", kMallory);
  Link(own_, shared_ + "/folder", kMallory);
  EXPECT_THAT(Place(shared_ + "/file"), HasSubstr("file is a symbolic link that user 4242 made"));
  EXPECT_THAT(Place(shared_ + "/folder/file"), HasSubstr("link that user 4242 made"));
  EXPECT_THAT(std::string(MakeFolders(shared_ + "/folder/logs", "make it").status().message()),
              HasSubstr("link that user 4242 made"));
  EXPECT_FALSE(std::filesystem::exists(own_ + "/logs"));
  // The folder's owner may: as root in /tmp, or mallory in hers.
  ASSERT_EQ(chown(shared_.c_str(), kMallory, kMallory), 0);
  EXPECT_EQ(Place(shared_ + "/file"), own_ + "/file");
}

TEST_F(OutputFileTest, MakesFolders) {
  ASSERT_TRUE(MakeFolders(own_ + "/a/b/c", "make it").ok());
  EXPECT_TRUE(std::filesystem::is_directory(own_ + "/a/b/c"));
  ASSERT_TRUE(MakeFolders(own_ + "/a/b/c/", "make it").ok());
  std::ofstream(own_ + "/file") << "x";
  EXPECT_THAT(std::string(MakeFolders(own_ + "/file/b", "make it").status().message()),
              HasSubstr("make it: Not a directory"));
}

TEST_F(OutputFileTest, MakesFoldersInOneThatIsOpen) {
  const auto open_own = [&] { return UniqueFd(open(own_.c_str(), O_PATH | O_DIRECTORY)); };
  ASSERT_TRUE(MakeFoldersIn(open_own(), "a/b", "make it").ok());
  EXPECT_TRUE(std::filesystem::is_directory(own_ + "/a/b"));
  ASSERT_TRUE(MakeFoldersIn(open_own(), shared_ + "/c", "make it").ok());
  EXPECT_TRUE(std::filesystem::is_directory(shared_ + "/c"));
  EXPECT_FALSE(MakeFoldersIn(open_own(), "", "make it").ok());
}

}  // namespace
}  // namespace dtrain::os
