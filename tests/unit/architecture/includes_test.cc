// SPDX-License-Identifier: Apache-2.0
// Holds every #include of the product against the table in docs/architecture.md.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/paths.h"

namespace dtrain {
namespace {

namespace fs = std::filesystem;
const fs::path kRoot = SourcePath("");
const char* const kTops[] = {"common",   "rendezvous", "launcher", "agent",
                             "shepherd", "spawner",    "runtime"};

struct Row {
  std::set<std::string> ours;
  std::set<std::string> others;
};

// How a third-party header is known by its path.
const std::map<std::string, std::string> kLibraries = {
    {"absl/", "absl"},
    {"boost/asio", "Boost.Asio"},
    {"boost/beast", "Boost.Beast"},
    {"boost/crc", "Boost.CRC"},
    {"boost/", "Boost.Asio"},
    {"spdlog/", "spdlog"},
    {"fmt/", "spdlog"},
    {"grpcpp/", "gRPC"},
    {"grpc/", "gRPC"},
    {"google/protobuf", "Protobuf"},
    {"libssh/", "libssh"},
    {"openssl/", "OpenSSL"},
    {"nlohmann/", "nlohmann/json"},
    {"CLI/", "CLI11"},
    {"toml++/", "toml++"},
    {"pmix", "PMIx"},
    {"yaml", "libyaml"},
    {"zlib.h", "zlib"},
};

std::vector<std::string> Backticked(const std::string& text) {
  std::vector<std::string> out;
  static const std::regex kTick("`([^`]+)`");
  for (std::sregex_iterator it(text.begin(), text.end(), kTick), end; it != end; ++it) {
    out.push_back((*it)[1]);
  }
  return out;
}

std::map<std::string, Row> ReadTable() {
  std::map<std::string, Row> table;
  std::ifstream in(kRoot / "docs/architecture.md");
  std::string line;
  bool inside = false;
  while (std::getline(in, line)) {
    if (line.rfind("| folder |", 0) == 0) inside = true;
    if (inside && line.empty()) break;
    if (!inside || line.rfind("| `", 0) != 0) continue;
    std::vector<std::string> cells;
    std::stringstream cut(line.substr(1));
    for (std::string cell; std::getline(cut, cell, '|');) cells.push_back(cell);
    Row row;
    for (const std::string& name : Backticked(cells.at(2))) row.ours.insert(name);
    std::stringstream libs(cells.at(3));
    for (std::string lib; std::getline(libs, lib, ',');) {
      lib.erase(0, lib.find_first_not_of(' '));
      lib.erase(lib.find_last_not_of(' ') + 1);
      if (!lib.empty()) row.others.insert(lib);
    }
    table[Backticked(cells.at(0)).at(0)] = row;
  }
  return table;
}

// The folder of the table that a file belongs to: the longest that is a prefix of its path.
std::string FolderOf(const std::string& path, const std::map<std::string, Row>& table) {
  std::string best;
  for (const auto& [folder, row] : table) {
    if (path.rfind(folder + "/", 0) == 0 && folder.size() > best.size()) best = folder;
  }
  return best;
}

bool Allows(const std::set<std::string>& allowed, const std::string& folder) {
  for (const std::string& entry : allowed) {
    if (entry == folder) return true;
    if (entry.size() > 2 && entry.substr(entry.size() - 2) == "/*" &&
        folder.rfind(entry.substr(0, entry.size() - 1), 0) == 0) {
      return true;
    }
  }
  return false;
}

std::string Complaint(const std::string& file, const std::string& include,
                      const std::map<std::string, Row>& table) {
  std::string from = FolderOf(file, table);
  if (from.empty()) return file + " is in no folder of docs/architecture.md";
  const Row& row = table.at(from);
  if (include.rfind("dtrain/v1/", 0) == 0) {
    return include.find(".grpc.") != std::string::npos
               ? (row.others.count("gRPC") != 0 ? "" : file + " may not use gRPC: " + include)
               : (row.ours.count("proto") != 0 ? "" : file + " may not use proto: " + include);
  }
  std::string to = FolderOf(include, table);
  if (!to.empty()) {
    bool ok = to == from || Allows(row.ours, to);
    return ok ? "" : file + " (" + from + ") may not include " + include + " (" + to + ")";
  }
  std::string library;
  size_t longest = 0;
  for (const auto& [prefix, name] : kLibraries) {
    if (include.rfind(prefix, 0) == 0 && prefix.size() > longest) {
      library = name;
      longest = prefix.size();
    }
  }
  if (library.empty() || row.others.count(library) != 0) return "";
  return file + " (" + from + ") may not use " + library + ": " + include;
}

std::vector<std::string> IncludesOf(const fs::path& file) {
  std::vector<std::string> out;
  static const std::regex kInclude("^\\s*#\\s*include\\s*[<\"]([^>\"]+)[>\"].*");
  std::ifstream in(file);
  std::smatch match;
  for (std::string line; std::getline(in, line);) {
    if (std::regex_match(line, match, kInclude)) out.push_back(match[1]);
  }
  return out;
}

TEST(Architecture, TheTableIsThere) {
  std::map<std::string, Row> table = ReadTable();
  EXPECT_GE(table.size(), 18u);
  EXPECT_TRUE(table["launcher/job"].ours.count("rendezvous") != 0);
}

TEST(Architecture, EveryIncludeIsAllowedByTheTable) {
  std::map<std::string, Row> table = ReadTable();
  size_t files = 0;
  for (const char* top : kTops) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(kRoot / top)) {
      std::string extension = entry.path().extension();
      if (extension != ".h" && extension != ".cc") continue;
      ++files;
      std::string relative = fs::relative(entry.path(), kRoot);
      for (const std::string& include : IncludesOf(entry.path())) {
        std::string complaint = Complaint(relative, include, table);
        EXPECT_EQ(complaint, "");
      }
    }
  }
  EXPECT_GT(files, 50u);
}

// The canary: the check itself must find what it is for.
TEST(Architecture, TheCheckSeesAWrongArrow) {
  std::map<std::string, Row> table = ReadTable();
  EXPECT_NE(Complaint("rendezvous/x.cc", "launcher/job/job_core.h", table), "");
  EXPECT_NE(Complaint("agent/shepherd/x.cc", "grpcpp/grpcpp.h", table), "");
  EXPECT_NE(Complaint("runtime/x.cc", "common/base/ids.h", table), "");
  EXPECT_EQ(Complaint("launcher/job/x.cc", "launcher/plan/plan.h", table), "");
}

// Deciders stay pure: no clock, no thread, no system call can come in through a header.
TEST(Architecture, PureFoldersIncludeNoImpureHeaders) {
  const std::set<std::string> impure = {"thread",   "mutex",   "future",    "fstream", "iostream",
                                        "unistd.h", "fcntl.h", "pthread.h", "signal.h"};
  for (const char* folder : {"rendezvous", "launcher/plan", "launcher/job", "launcher/elastic",
                             "launcher/journal", "agent/auth", "common/link"}) {
    for (const fs::directory_entry& entry : fs::directory_iterator(kRoot / folder)) {
      if (entry.path().stem() == "socket_carrier") continue;  // the doer of common/link
      for (const std::string& include : IncludesOf(entry.path())) {
        bool system = impure.count(include) != 0 || include.rfind("sys/", 0) == 0;
        EXPECT_FALSE(system) << entry.path() << " includes " << include;
      }
    }
  }
}

}  // namespace
}  // namespace dtrain
