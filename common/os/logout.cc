// SPDX-License-Identifier: Apache-2.0
#include "common/os/logout.h"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/os/account.h"
#include "common/os/fd.h"

namespace dtrain::os {
namespace {

// In the order in which they count, the last one most; of a name that several have the last alone.
constexpr const char* kLogindPlaces[] = {"/usr/lib/systemd", "/run/systemd", "/etc/systemd"};
// As systemd counts users of services: logind leaves their IPC alone.
constexpr uid_t kFirstLoginUid = 1000;

bool ReadBool(absl::string_view value, bool otherwise) {
  const std::string word = absl::AsciiStrToLower(value);
  if (word == "1" || word == "yes" || word == "y" || word == "true" || word == "t" ||
      word == "on") {
    return true;
  }
  if (word == "0" || word == "no" || word == "n" || word == "false" || word == "f" ||
      word == "off") {
    return false;
  }
  return otherwise;
}

std::vector<std::string> ReadUsers(absl::string_view value) {
  std::vector<std::string> users;
  for (absl::string_view user : absl::StrSplit(value, absl::ByAnyChar(" \t"), absl::SkipEmpty())) {
    users.emplace_back(user);
  }
  return users;
}

void Set(LogindSetting& setting, absl::string_view name, absl::string_view value,
         const std::string& path, bool built_in) {
  setting.on = ReadBool(value, setting.on);
  setting.from = absl::StrCat(name, "=", setting.on ? "yes" : "no",
                              built_in ? " by default, see " : " in ", path);
}

bool Has(const std::vector<std::string>& users, absl::string_view user) {
  return std::find(users.begin(), users.end(), user) != users.end();
}

std::vector<LogindFile> ReadLogindFiles(const std::string& root) {
  std::vector<LogindFile> files;
  std::map<std::string, std::string> dropped_in;  // by name: a path
  std::string main;
  for (const char* place : kLogindPlaces) {
    const std::string own = absl::StrCat(place, "/logind.conf");
    if (access(absl::StrCat(root, own).c_str(), R_OK) == 0) main = own;
    const std::string folder = absl::StrCat(own, ".d");
    std::unique_ptr<DIR, int (*)(DIR*)> listing(opendir(absl::StrCat(root, folder).c_str()),
                                                closedir);
    while (const dirent* entry = listing != nullptr ? readdir(listing.get()) : nullptr) {
      if (absl::EndsWith(entry->d_name, ".conf")) {
        dropped_in[entry->d_name] = absl::StrCat(folder, "/", entry->d_name);
      }
    }
  }
  const auto read = [&](const std::string& path) {
    auto text = ReadSmallFile(absl::StrCat(root, path));
    if (text.ok()) files.emplace_back(path, *std::move(text));
  };
  if (!main.empty()) read(main);
  for (const auto& [name, path] : dropped_in) read(path);
  return files;
}

}  // namespace

bool LogindSettings::KillsProcessesOf(absl::string_view user) const {
  if (!kill_user_processes.on || Has(kill_exclude_users, user)) return false;
  return kill_only_users.empty() || Has(kill_only_users, user);
}

LogindSettings ParseLogind(const std::vector<LogindFile>& files) {
  LogindSettings settings;
  settings.kill_exclude_users = {"root"};
  settings.remove_ipc = {true, "RemoveIPC=yes by default"};
  for (const bool built_in : {true, false}) {
    for (const auto& [path, text] : files) {
      bool in_login = false;
      for (absl::string_view line : absl::StrSplit(text, '\n')) {
        line = absl::StripAsciiWhitespace(line);
        if (absl::StartsWith(line, "[")) in_login = line == "[Login]";
        if (!in_login || line.empty() || line[0] == ';' || (line[0] == '#') != built_in) continue;
        if (built_in) line.remove_prefix(1);
        const std::pair<absl::string_view, absl::string_view> words =
            absl::StrSplit(line, absl::MaxSplits('=', 1));
        const absl::string_view name = absl::StripAsciiWhitespace(words.first);
        const absl::string_view value = absl::StripAsciiWhitespace(words.second);
        if (name == "KillUserProcesses") {
          Set(settings.kill_user_processes, name, value, path, built_in);
        } else if (name == "RemoveIPC") {
          Set(settings.remove_ipc, name, value, path, built_in);
        } else if (name == "KillOnlyUsers" && !built_in) {
          settings.kill_only_users = ReadUsers(value);
        } else if (name == "KillExcludeUsers" && !built_in) {
          settings.kill_exclude_users = ReadUsers(value);
        }
      }
    }
  }
  return settings;
}

bool IsInSession(absl::string_view cgroups) {
  for (absl::string_view line : absl::StrSplit(cgroups, '\n')) {
    const size_t path = line.find('/');
    if (path == line.npos) continue;
    for (absl::string_view each : absl::StrSplit(line.substr(path), '/')) {
      if (absl::StartsWith(each, "session-") && absl::EndsWith(each, ".scope")) return true;
    }
  }
  return false;
}

bool Lingers(absl::string_view user, const std::string& root) {
  return !user.empty() && !absl::StrContains(user, '/') &&
         access(absl::StrCat(root, "/var/lib/systemd/linger/", user).c_str(), F_OK) == 0;
}

// A user who lingers is never logged out, so IPC stays; a session ends all the same, and with it
// what is in its scope.
AtLogout ReadAtLogout(const std::string& root) {
  if (access(absl::StrCat(root, "/run/systemd/system").c_str(), F_OK) != 0) return {};
  if (geteuid() == 0 && root.empty()) return {};
  auto cgroups = ReadSmallFile(absl::StrCat(root, "/proc/self/cgroup"));
  if (!cgroups.ok() || !IsInSession(*cgroups)) return {};
  // Which may ask a directory: not for a service, and everybody that it serves.
  auto account = FindAccount(geteuid());
  if (!account.ok()) return {};
  const LogindSettings settings = ParseLogind(ReadLogindFiles(root));
  AtLogout out;
  if (settings.KillsProcessesOf(account->name)) {
    out.ends_processes = settings.kill_user_processes.from;
  }
  if (settings.remove_ipc.on && !Lingers(account->name, root) && geteuid() >= kFirstLoginUid) {
    out.removes_ipc = settings.remove_ipc.from;
  }
  return out;
}

}  // namespace dtrain::os
