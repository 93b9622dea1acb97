// SPDX-License-Identifier: Apache-2.0
#include "agent/stage/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/loop/loop.h"
#include "common/manifest/sha256.h"

namespace dtrain::staged {
namespace {

namespace fs = std::filesystem;
using manifest::File;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

class ComparisonTest : public testing::Test {
 protected:
  ComparisonTest() {
    std::string folder = absl::StrCat(testing::TempDir(), "/comparisonXXXXXX");
    folder_ = mkdtemp(folder.data());
  }
  ~ComparisonTest() override { fs::remove_all(folder_); }

  void Write(const std::string& path, const std::string& text, mode_t mode = 0644) {
    fs::create_directories((folder_ / path).parent_path());
    std::ofstream(folder_ / path) << text;
    ASSERT_EQ(chmod((folder_ / path).c_str(), mode), 0);
  }
  static File Of(const std::string& path, const std::string& text,
                 File::Kind kind = File::Kind::kData) {
    return {kind, path, text.size(), manifest::HashOf(text), ""};
  }
  // What is said of the folder: "" for the same.
  std::string Compare(std::vector<File> files) {
    v1::StageTree tree;
    tree.set_manifest(*manifest::Format(files));
    tree.set_sha256(manifest::HashOf(tree.manifest()));
    tree.set_compare_in(folder_.string());
    return CompareWith(tree);
  }
  std::string CompareWith(const v1::StageTree& tree) {
    std::optional<std::string> said;
    Comparison comparison(loop_, {[&](const std::string& sha256) {
                                    EXPECT_EQ(sha256, tree.sha256());
                                    said = "";
                                  },
                                  [&](const absl::Status& why) {
                                    EXPECT_FALSE(said) << "twice";
                                    said = std::string(why.message());
                                  }});
    comparison.Begin(tree);
    const TimePoint deadline = Clock::now() + std::chrono::seconds(30);
    while (!said && Clock::now() < deadline) {
      loop_.context().run_one_for(std::chrono::milliseconds(5));
    }
    return said.value_or("nothing was said");
  }

  fs::path folder_;
  loop::Loop loop_;
};

TEST_F(ComparisonTest, TheSameFilesAreTheSameWhateverElseIsThere) {
  Write("train.py", "one");
  Write("lib/run.sh", "two", 0755);
  Write("empty", "");
  Write("more", "of the node's own");
  fs::create_symlink("lib/run.sh", folder_ / "link");
  EXPECT_EQ(Compare({Of("train.py", "one"), Of("lib/run.sh", "two", File::Kind::kProgram),
                     Of("empty", ""), File{File::Kind::kLink, "link", 0, "", "lib/run.sh"}}),
            "");
}

TEST_F(ComparisonTest, EachDifferenceIsToldWithTheFile) {
  Write("content", "one");
  Write("length", "longer");
  Write("program", "x");
  Write("data", "y", 0755);
  fs::create_directories(folder_ / "folder");
  EXPECT_THAT(Compare({Of("content", "two")}),
              HasSubstr("content is 7692c3ad, should be 3fc4ccfe"));
  EXPECT_THAT(Compare({Of("length", "short")}), EndsWith("length has 6 bytes, should have 5"));
  EXPECT_THAT(Compare({Of("none", "")}), EndsWith("none is missing"));
  EXPECT_THAT(Compare({Of("content/below", "")}), EndsWith("content/below is missing"));
  EXPECT_THAT(Compare({Of("folder", "")}), EndsWith("folder is not a regular file"));
  EXPECT_THAT(Compare({Of("program", "x", File::Kind::kProgram)}),
              EndsWith("program is not executable"));
  EXPECT_THAT(Compare({Of("data", "y")}), EndsWith("data is executable"));
  EXPECT_THAT(Compare({File{File::Kind::kLink, "content", 0, "", "data"}}),
              EndsWith("content is not a symbolic link"));
  fs::create_symlink("data-and-more", folder_ / "link");
  EXPECT_THAT(Compare({File{File::Kind::kLink, "link", 0, "", "data"}}),
              EndsWith("link does not link to data"));
}

TEST_F(ComparisonTest, OfManyTheFirstFiveAreToldAndTheOthersCounted) {
  std::vector<File> files;
  for (int i = 100; i < 300; ++i) files.push_back(Of(absl::StrCat("file", i), "text"));
  const std::string said = Compare(files);
  EXPECT_THAT(said, AllOf(HasSubstr("file100 is missing; "), HasSubstr("file104 is missing; "),
                          Not(HasSubstr("file105")), EndsWith("; and 195 more")));
}

// A FIFO in the place of a file, and a file that is a link out of the folder.
TEST_F(ComparisonTest, NothingIsWaitedForOrFollowed) {
  ASSERT_EQ(mkfifo((folder_ / "fifo").c_str(), 0600), 0);
  EXPECT_THAT(Compare({Of("fifo", "")}), EndsWith("fifo is not a regular file"));
  fs::create_symlink("/etc/passwd", folder_ / "out");
  EXPECT_THAT(Compare({Of("out", "text")}), EndsWith("out is not a regular file"));
}

TEST_F(ComparisonTest, ALauncherThatSaysWhatIsNotSoIsRefused) {
  v1::StageTree tree;
  tree.set_manifest("nonsense");
  tree.set_sha256(manifest::HashOf("another"));
  tree.set_compare_in(folder_.string());
  EXPECT_THAT(CompareWith(tree), HasSubstr("not the one that was announced"));
  tree.set_sha256(manifest::HashOf("nonsense"));
  EXPECT_NE(CompareWith(tree), "");
  std::vector<File> files = {Of("a", "")};
  tree.set_manifest(*manifest::Format(files));
  tree.set_sha256(manifest::HashOf(tree.manifest()));
  tree.set_compare_in((folder_ / "none").string());
  EXPECT_THAT(CompareWith(tree), HasSubstr("No such file or directory"));
}

}  // namespace
}  // namespace dtrain::staged
