// SPDX-License-Identifier: Apache-2.0
// A number may have become another process's: what is signalled or waited for goes by a pidfd. The
// lines that still use a number are listed here, each with what makes that number sure.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <string>

#include "tests/support/paths.h"

namespace dtrain {
namespace {

namespace fs = std::filesystem;
const fs::path kRoot = SourcePath("");
const char* const kTops[] = {"common",   "rendezvous", "launcher", "agent",
                             "shepherd", "spawner",    "runtime"};

// Calls that take a number, and how many of them a file may have.
const std::map<std::string, int> kAllowed = {
    {"agent/shepherd/worker.cc", 1},     // group of a child that is not reaped
    {"common/os/pidfd.cc", 1},           // pidfd_open itself
    {"common/os/pidfd_stand_in.cc", 2},  // pidfd_open; a child that is not reaped, or was just seen
    {"common/os/process_tree.cc", 1},    // groups of children that are not reaped
    {"launcher/transport/child.cc", 3},  // likewise
    {"launcher/end_hook.cc", 2},         // likewise
    {"runtime/shm/local_group.cc", 1},   // pidfd_open, to see an end; nothing is signalled
    {"launcher/transport/child_connection.cc", 1},  // likewise
};

TEST(Processes, AreNamedByADescriptor) {
  static const std::regex kCall(
      R"(\b(kill|killpg|waitpid|wait4|tgkill|tkill)\(|\bSYS_(kill|tkill|tgkill|pidfd_open|wait4)\b)");
  std::map<std::string, int> found;
  int files = 0;
  for (const char* top : kTops) {
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / top)) {
      const std::string extension = entry.path().extension();
      if (extension != ".cc" && extension != ".h") continue;
      ++files;
      std::ifstream in(entry.path());
      std::string line;
      while (std::getline(in, line)) {
        const std::string code = line.substr(0, line.find("//"));
        // The expression takes seconds for all lines; each of its matches has one of these.
        const auto has = [&](const char* word) { return code.find(word) != code.npos; };
        if (!has("kill") && !has("wait") && !has("pidfd_open")) continue;
        if (std::regex_search(code, kCall)) ++found[fs::relative(entry.path(), kRoot)];
      }
    }
  }
  EXPECT_GT(files, 100);
  EXPECT_EQ(found, kAllowed);
}

}  // namespace
}  // namespace dtrain
