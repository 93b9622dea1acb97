// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "launcher/hosts/hostfile.h"

namespace dtrain::hosts {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// The one place of this folder that does I/O, so these tests use a directory of their own.
class ReadHostfileTest : public ::testing::Test {
 protected:
  ReadHostfileTest() {
    std::string name = ::testing::TempDir() + "/hostfile-XXXXXX";
    dir_ = mkdtemp(name.data());
  }
  ~ReadHostfileTest() override { std::filesystem::remove_all(dir_); }

  std::string Path(const std::string& name) const { return dir_ + "/" + name; }
  std::string Write(const std::string& name, const std::string& text) const {
    std::ofstream(Path(name), std::ios::binary) << text;
    return Path(name);
  }
  std::string Error(const std::string& path) const {
    auto text = ReadHostfile(path);
    return text.ok() ? "" : std::string(text.status().message());
  }

  std::string dir_;
};

TEST_F(ReadHostfileTest, GivesTheText) {
  EXPECT_EQ(*ReadHostfile(Write("a", "node1\r\nnode2\n")), "node1\r\nnode2\n");
  EXPECT_EQ(*ReadHostfile(Write("b", "")), "");
  std::string big(kMaxHostfileBytes, 'x');
  EXPECT_EQ(ReadHostfile(Write("c", big))->size(), big.size());
}

// A2
TEST_F(ReadHostfileTest, RefusesWhatIsNotARegularFileWithoutBlocking) {
  EXPECT_EQ(Error(Path("none")),
            absl::StrCat("cannot read ", Path("none"), ": No such file or directory"));
  EXPECT_EQ(Error(dir_), absl::StrCat("cannot read ", dir_,
                                      ": Is a directory: it is a directory, "
                                      "give a regular file"));
  ASSERT_EQ(mkfifo(Path("fifo").c_str(), 0600), 0);
  EXPECT_THAT(Error(Path("fifo")), HasSubstr("Invalid argument: it is a named pipe"));
  EXPECT_THAT(Error("/dev/null"), HasSubstr("Invalid argument: it is a device"));
  EXPECT_THAT(Error("/dev/zero"), HasSubstr("it is a device"));
  ASSERT_EQ(symlink(Path("fifo").c_str(), Path("link").c_str()), 0);
  EXPECT_THAT(Error(Path("link")), HasSubstr("it is a named pipe"));
  EXPECT_THAT(Error(Write("file", "x") + "/y"), HasSubstr(": Not a directory"));
  EXPECT_THAT(Error(""), HasSubstr("its name is empty"));
}

// A2
TEST_F(ReadHostfileTest, RefusesNulBytesAndHugeFiles) {
  EXPECT_EQ(Error(Write("nul", std::string("ab\0c", 4))),
            absl::StrCat("cannot read ", Path("nul"),
                         ": Invalid argument: NUL byte at offset 2, this is not a text file"));
  EXPECT_EQ(
      Error(Write("big", std::string(kMaxHostfileBytes + 1, 'x'))),
      absl::StrCat("cannot read ", Path("big"), ": File too large: more than 10485760 bytes"));
}

TEST_F(ReadHostfileTest, TakesADashForAName) {
  EXPECT_THAT(Error("-"), StartsWith("cannot read -: No such file"));
}

TEST_F(ReadHostfileTest, ShowsThePathEscaped) {
  EXPECT_THAT(Error("no\x1b[2J\nfile"), StartsWith("cannot read no\\x1b[2J\\nfile: "));
  EXPECT_THAT(Error(std::string("a\0b", 3)), StartsWith("cannot read a\\x00b: Invalid argument"));
}

}  // namespace
}  // namespace dtrain::hosts
