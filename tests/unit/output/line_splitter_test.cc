// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/line_splitter.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

namespace dtrain::output {
namespace {

using Lines = std::vector<std::pair<std::string, bool>>;

class LineSplitterTest : public testing::Test {
 protected:
  void Add(absl::string_view bytes) {
    splitter_.Add(bytes, [this](absl::string_view line, bool ended) {
      lines_.emplace_back(std::string(line), ended);
    });
  }
  void Flush() {
    splitter_.Flush([this](absl::string_view line, bool ended) {
      lines_.emplace_back(std::string(line), ended);
    });
  }
  LineSplitter splitter_;
  Lines lines_;
};

TEST_F(LineSplitterTest, GivesWholeLinesOnly) {
  Add("one\ntwo\nthr");
  EXPECT_EQ(lines_, (Lines{{"one", true}, {"two", true}}));
  Add("ee\n");
  EXPECT_EQ(lines_.back(), (std::pair<std::string, bool>("three", true)));
  EXPECT_EQ(splitter_.pending(), 0u);
}

TEST_F(LineSplitterTest, KeepsEmptyLines) {
  Add("\n\na\n");
  EXPECT_EQ(lines_, (Lines{{"", true}, {"", true}, {"a", true}}));
}

// J7
TEST_F(LineSplitterTest, GivesTheLastLineWithoutNewlineWhenFlushed) {
  Add("done");
  EXPECT_TRUE(lines_.empty());
  Flush();
  EXPECT_EQ(lines_, (Lines{{"done", false}}));
  Flush();
  EXPECT_EQ(lines_.size(), 1u);
}

// J2
TEST_F(LineSplitterTest, CutsALineThatDoesNotEndIntoRecords) {
  const std::string block(10000, 'x');
  for (int i = 0; i < 100; ++i) Add(block);
  for (const auto& [line, ended] : lines_) {
    EXPECT_EQ(line.size(), LineSplitter::kMaxLine);
    EXPECT_FALSE(ended);
  }
  EXPECT_EQ(lines_.size(), 1000000u / LineSplitter::kMaxLine);
  EXPECT_EQ(splitter_.pending(), 1000000u % LineSplitter::kMaxLine);
}

TEST_F(LineSplitterTest, DoesNotCutALineOfJustTheLimit) {
  const std::string line(LineSplitter::kMaxLine, 'x');
  Add(line);
  Add("\nnext\n");
  EXPECT_EQ(lines_, (Lines{{line, true}, {"next", true}}));
}

// J3
TEST_F(LineSplitterTest, LeavesBytesAsTheyAre) {
  const std::string bytes("\0\xff\r\x1b[31m\n", 9);
  Add(bytes);
  EXPECT_EQ(lines_, (Lines{{std::string(bytes.data(), 8), true}}));
}

TEST_F(LineSplitterTest, LosesAndInventsNothingHoweverTheBytesArrive) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  std::string in;
  while (in.size() < 600000) {
    in.append(random() % (random() % 20 == 0 ? 150000 : 200),
              static_cast<char>('a' + random() % 9));
    in.push_back('\n');
  }
  in += "tail";
  for (size_t at = 0; at < in.size();) {
    size_t n = std::min<size_t>(in.size() - at, 1 + random() % (random() % 5 == 0 ? 100000 : 50));
    Add(absl::string_view(in).substr(at, n));
    ASSERT_LE(splitter_.pending(), LineSplitter::kMaxLine);
    at += n;
  }
  Flush();
  std::string out;
  for (const auto& [line, ended] : lines_) {
    ASSERT_LE(line.size(), LineSplitter::kMaxLine);
    ASSERT_EQ(line.find('\n'), std::string::npos);
    out += line;
    if (ended) out += '\n';
  }
  EXPECT_TRUE(out == in);
}

}  // namespace
}  // namespace dtrain::output
