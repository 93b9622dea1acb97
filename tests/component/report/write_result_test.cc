// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/write_result.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "common/os/unique_fd.h"
#include "launcher/report/result_json.h"

namespace dtrain::report {
namespace {

using testing::HasSubstr;

class WriteResultTest : public testing::Test {
 protected:
  WriteResultTest() {
    char path[] = "/tmp/dtrain-result-XXXXXX";
    EXPECT_NE(mkdtemp(path), nullptr);
    dir_ = path;
    file_ = dir_ + "/result.json";
  }
  ~WriteResultTest() override { std::filesystem::remove_all(dir_); }

  static std::string Read(const std::string& path) {
    std::ifstream in(path);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
  }
  size_t Entries() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(dir_), {}));
  }

  std::string dir_;
  std::string file_;
};

TEST_F(WriteResultTest, ReplacesTheFileWholeAndLeavesNothingElse) {
  ASSERT_TRUE(WriteResult(file_, "old, and longer\n").ok());
  os::UniqueFd reader(open(file_.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(WriteResult(file_, "new\n").ok());
  EXPECT_EQ(Read(file_), "new\n");
  char buffer[32];
  EXPECT_EQ(read(reader.get(), buffer, sizeof(buffer)), 16);  // an open reader sees one version
  EXPECT_EQ(Entries(), 1u);
}

TEST_F(WriteResultTest, ALinkStaysOne) {
  std::filesystem::create_symlink(dir_ + "/real", file_);
  std::ofstream(dir_ + "/real") << "old";
  ASSERT_TRUE(WriteResult(file_, "new").ok());
  EXPECT_TRUE(std::filesystem::is_symlink(file_));
  EXPECT_EQ(Read(dir_ + "/real"), "new");
}

TEST_F(WriteResultTest, AFifoGetsTheTextAndIsNotReplaced) {
  ASSERT_EQ(mkfifo(file_.c_str(), 0600), 0);
  os::UniqueFd reader(open(file_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  ASSERT_TRUE(WriteResult(file_, "text").ok());
  char buffer[8];
  EXPECT_EQ(read(reader.get(), buffer, sizeof(buffer)), 4);
  EXPECT_TRUE(std::filesystem::is_fifo(file_));
}

TEST_F(WriteResultTest, AFifoNobodyReadsIsAnErrorAndNoWait) {
  ASSERT_EQ(mkfifo(file_.c_str(), 0600), 0);
  EXPECT_THAT(std::string(WriteResult(file_, "text").message()),
              HasSubstr("no process is reading it"));
}

TEST_F(WriteResultTest, DevicesAreNeverReplaced) {
  EXPECT_TRUE(WriteResult("/dev/null", "text").ok());
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST_F(WriteResultTest, WhatCannotBeWrittenIsToldBeforeAndAfterwards) {
  const std::string path = dir_ + "/missing/result.json";
  EXPECT_THAT(std::string(CheckWritable("--result-json", path).message()),
              HasSubstr(path + ": No such file or directory"));
  EXPECT_EQ(CheckWritable("--result-json", path).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(WriteResult(path, "x").message()), HasSubstr(path));
  EXPECT_THAT(std::string(CheckWritable("--result-json", dir_).message()),
              HasSubstr("Is a directory"));
  EXPECT_TRUE(CheckWritable("--result-json", file_).ok());
  EXPECT_EQ(Entries(), 0u);
}

}  // namespace
}  // namespace dtrain::report
