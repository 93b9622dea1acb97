// SPDX-License-Identifier: Apache-2.0
// What runs as root stays small enough to be read, and has no threads and no libraries.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <string>

#include "tests/support/paths.h"

namespace dtrain {
namespace {

// Lines that are neither empty nor comments.
constexpr int kMostSpawnerLines = 2000;

TEST(SpawnerSourceTest, IsSmallAndUsesNothing) {
  static const std::regex kNothing(R"(^\s*(//.*)?$)");
  static const std::regex kOurs(R"(^\s*#\s*include\s*"(?!spawner/))");
  static const std::regex kForbidden(
      R"(\b(pid_t|getpid|kill|killpg|waitpid|wait|SYS_kill|SYS_tgkill|system|popen|pthread_\w+)\s*\(|\bpid_t\b|<thread>|<mutex>|<future>)");
  int lines = 0, files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(SourcePath("spawner"))) {
    ++files;
    std::ifstream in(entry.path());
    for (std::string line; std::getline(in, line);) {
      lines += !std::regex_match(line, kNothing);
      EXPECT_FALSE(std::regex_search(line, kOurs)) << entry.path() << ": " << line;
      const std::string code = line.substr(0, line.find("//"));
      EXPECT_FALSE(std::regex_search(code, kForbidden)) << entry.path() << ": " << line;
    }
  }
  EXPECT_GT(files, 10);
  EXPECT_LE(lines, kMostSpawnerLines);
  EXPECT_TRUE(std::regex_search("  kill(pid, 9);", kForbidden)) << "the check sees what it is for";
  RecordProperty("lines", lines);
}

}  // namespace
}  // namespace dtrain
