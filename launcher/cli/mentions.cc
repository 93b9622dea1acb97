// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/mentions.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/text.h"
#include "launcher/cli/cli11.h"
#include "launcher/cli/flag_table.h"
#include "launcher/cli/forwarded_env.h"
#include "launcher/cli/help.h"
#include "launcher/cli/history_config.h"
#include "launcher/cli/words.h"

namespace dtrain::cli {
namespace {

absl::string_view Variable(const Surroundings& surroundings, absl::string_view name) {
  return FindVariable(surroundings, name).value_or("");
}

// -m is a part of the command, and bench, faces and dtrain.run() have commands of their own.
bool IsCommandLineOnly(absl::string_view name) {
  return name == "help" || name == "help-all" || name == "config" || name == "no-config" ||
         name == "module";
}

// Words of a source that has no spelling of its own, in the form SplitWords would give.
void Append(const Flag& flag, const std::string& value, std::vector<std::string>& words) {
  std::string name = absl::StrCat("--", FlagName(flag));
  if (flag.value.empty()) {
    words.push_back(absl::StrCat(name, "=", value));
  } else {
    words.push_back(std::move(name));
    words.push_back(value);
  }
}

// Other commands have sections of their own.
bool IsOfLaunch(const config::Entry& entry) {
  return entry.section.empty() || entry.section == "launch";
}

// "/home/me/.config/dtrain/config.toml:3"
std::string PlaceOf(const ConfigFile& file, int flag) {
  const auto it = std::find_if(file.entries.begin(), file.entries.end(), [&](const auto& entry) {
    return IsOfLaunch(entry) && FindLong(LaunchFlags(), entry.key) == flag;
  });
  return it == file.entries.end() ? Escape(file.path) : it->PlaceIn(file.path);
}

// `entry` as [launch] has it, or why it means nothing there.
absl::Status CheckEntry(const ConfigFile& file, const config::Entry& entry) {
  if (!IsOfLaunch(entry)) {
    if (entry.section == "history") return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(entry.PlaceIn(file.path), ": unknown section [", Escape(entry.section, 80),
                     "] of ", Escape(entry.key, 80),
                     DidYouMean(absl::StrCat("[", entry.section, "]"), {"[launch]", "[history]"})));
  }
  const int flag = FindLong(LaunchFlags(), entry.key);
  if (flag < 0 || IsCommandLineOnly(FlagName(LaunchFlags()[flag]))) {
    return absl::InvalidArgumentError(
        absl::StrCat(entry.PlaceIn(file.path), ": unknown key ", Escape(entry.key, 80),
                     DidYouMean(entry.key, LongNames(LaunchFlags()))));
  }
  // At the top of the file and below [launch], or by another of its names.
  const std::string first = PlaceOf(file, flag);
  if (first == entry.PlaceIn(file.path)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(entry.PlaceIn(file.path), ": ", entry.key,
                                                 " is given twice; it stands at ", first, ", too"));
}

// `file`: of kConfig, else null.
absl::Status Collect(Source source, const std::vector<std::string>& words, const ConfigFile* file,
                     Mentions& mentions) {
  absl::StatusOr<std::vector<Given>> given = ParseFlags(LaunchFlags(), words);
  if (!given.ok()) return file != nullptr ? At(Escape(file->path), given.status()) : given.status();
  for (Given& one : *given) {
    absl::string_view name = FlagName(LaunchFlags()[one.flag]);
    std::string where = source == kConfig ? absl::StrCat(name, " in ", PlaceOf(*file, one.flag))
                        : source == kEnvironment ? FlagVariable(name)
                                                 : absl::StrCat("--", name);
    mentions.push_back({source, one.flag, std::move(one.value), std::move(where)});
  }
  return absl::OkStatus();
}

absl::Status CollectConfig(const ConfigFile& file, Mentions& mentions) {
  // A launch that ends has nobody to tell what is wrong there.
  absl::Status history = HistoryConfigOf(file.path, file.entries).status();
  if (!history.ok()) return history;
  std::vector<std::string> words;
  for (const config::Entry& entry : file.entries) {
    absl::Status checked = CheckEntry(file, entry);
    if (!checked.ok()) return checked;
    if (!IsOfLaunch(entry)) continue;
    const Flag& flag = LaunchFlags()[FindLong(LaunchFlags(), entry.key)];
    // A list is one mention for each value, or one value with commas, as in hosts = ["a", "b"].
    if (flag.repeats) {
      for (const std::string& each : entry.values) Append(flag, each, words);
    } else {
      Append(flag, absl::StrJoin(entry.values, ","), words);
    }
  }
  return Collect(kConfig, words, &file, mentions);
}

absl::Status CollectEnvironment(const Surroundings& surroundings, Mentions& mentions) {
  std::vector<std::string> words;
  for (const Flag& flag : LaunchFlags()) {
    absl::string_view name = FlagName(flag);
    absl::string_view value = Variable(surroundings, FlagVariable(name));
    if (value.empty() || IsCommandLineOnly(name)) continue;
    if (!flag.repeats) {
      Append(flag, std::string(value), words);
      continue;
    }
    // Lines may have commas in them. The last line's end is no separator: YAML's blocks have it.
    absl::ConsumeSuffix(&value, "\n");
    const bool lines = value.find('\n') != absl::string_view::npos;
    for (absl::string_view part : absl::StrSplit(value, lines ? '\n' : ',')) {
      if (!lines || !part.empty()) Append(flag, std::string(part), words);
    }
  }
  return Collect(kEnvironment, words, nullptr, mentions);
}

// Others that dtrain reads or sets, so that they may be there in a launch within a job.
constexpr absl::string_view kOthersOfOurs[] = {
    "ADDRESS",      "AGENT_STATE", "ATTEMPT",    "BACKEND",    "BIN",        "BIN_DIR",
    "BUILD_DIR",    "CACHE",       "CONFIG",     "CORE_DUMPS", "CYCLE_TIME", "DEBUG",
    "DEVICE",       "ERROR_FILE",  "EXIT_CODE",  "HOST",       "JOB_ID",     "LIBRARY",
    "LIBSSH",       "LOCAL_RANK",  "LOCAL_SIZE", "NODE_COUNT", "NODE_RANK",  "NO_CONFIG",
    "PAGE_FD",      "PRESET",      "RANK",       "SEED",       "SHARE_GPU",  "SHEPHERD",
    "STATE_FOLDER", "SUMMARY",     "WORLD_SIZE", "STAGE_DIR",  "TRACE",      "MODULE"};

// Letters to insert, remove or replace.
size_t Edits(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, replaced}));
    }
  }
  return row[b.size()];
}

struct ConfigChoice {
  std::string path;
  bool must_exist = false;
};

ConfigChoice ChooseConfig(const Mentions& command_line, const Surroundings& surroundings) {
  for (const Mention& mention : command_line) {
    absl::string_view name = FlagName(LaunchFlags()[mention.flag]);
    if (name == "no-config" && mention.value == "true") return {};
    if (name == "config") return {mention.value, true};
  }
  if (absl::string_view path = Variable(surroundings, "DTRAIN_CONFIG"); !path.empty()) {
    return {std::string(path), true};
  }
  if (absl::string_view dir = Variable(surroundings, "XDG_CONFIG_HOME"); !dir.empty()) {
    return {absl::StrCat(dir, "/dtrain/config.toml"), false};
  }
  if (absl::string_view home = Variable(surroundings, "HOME"); !home.empty()) {
    return {absl::StrCat(home, "/.config/dtrain/config.toml"), false};
  }
  return {};
}

std::string IgnoredConfig(const absl::Status& why) {
  return absl::StrCat("the configuration file is ignored: ", why.message(),
                      "; to use it nevertheless, name it with --config");
}

constexpr absl::string_view kExclusive[][2] = {
    {"hostfile", "hosts"},  {"rankfile", "ppn"},  {"rankfile", "map-by"}, {"rankfile", "nnodes"},
    {"rsh", "ssh-config"},  {"rsh", "ssh-port"},  {"rsh", "agent"},       {"verbose", "quiet"},
    {"include", "exclude"}, {"log-dir", "output"}};

void Drop(Mentions& mentions, absl::string_view name) {
  mentions.erase(std::remove_if(mentions.begin(), mentions.end(),
                                [&](const Mention& mention) {
                                  return FlagName(LaunchFlags()[mention.flag]) == name;
                                }),
                 mentions.end());
}

absl::Status ResolvePair(Mentions& mentions, absl::string_view one, absl::string_view other,
                         absl::string_view why) {
  int a = FindMention(mentions, one);
  int b = FindMention(mentions, other);
  if (a < 0 || b < 0) return absl::OkStatus();
  Source source_a = mentions[a].source;
  Source source_b = mentions[b].source;
  if (source_a == source_b) {
    return absl::InvalidArgumentError(absl::StrCat(mentions[a].where, " and ", mentions[b].where,
                                                   " contradict each other; ", why));
  }
  Drop(mentions, source_a < source_b ? one : other);
  return absl::OkStatus();
}

}  // namespace

absl::Status At(absl::string_view where, const absl::Status& status) {
  return absl::InvalidArgumentError(absl::StrCat(where, ": ", status.message()));
}

absl::StatusOr<ConfigFile> ReadConfigFile(const Mentions& command_line,
                                          const Surroundings& surroundings) {
  const ConfigChoice choice = ChooseConfig(command_line, surroundings);
  if (choice.path.empty()) return ConfigFile();
  if (!choice.must_exist && surroundings.check != nullptr) {
    const absl::Status checked = surroundings.check(choice.path);
    if (absl::IsPermissionDenied(checked)) return checked;
    if (absl::IsNotFound(checked)) return ConfigFile();
  }
  absl::StatusOr<std::string> text = surroundings.read(choice.path);
  if (!text.ok()) {
    if (!choice.must_exist && absl::IsNotFound(text.status())) return ConfigFile();
    return At("configuration file", text.status());
  }
  absl::StatusOr<std::vector<config::Entry>> entries = config::ParseToml(choice.path, *text);
  if (!entries.ok()) return entries.status();
  return ConfigFile{choice.path, *std::move(entries)};
}

absl::StatusOr<Mentions> CollectAll(const std::vector<std::string>& words,
                                    const Surroundings& surroundings) {
  Mentions command_line;
  absl::Status status = Collect(kCommandLine, words, nullptr, command_line);
  if (!status.ok()) return status;
  Mentions all;
  absl::StatusOr<ConfigFile> config = ReadConfigFile(command_line, surroundings);
  if (absl::IsPermissionDenied(config.status())) {
    if (surroundings.warn != nullptr) surroundings.warn(IgnoredConfig(config.status()));
    config = ConfigFile();
  }
  if (!config.ok()) return config.status();
  status = CollectConfig(*config, all);
  if (!status.ok()) return status;
  status = CollectEnvironment(surroundings, all);
  if (!status.ok()) return status;
  all.insert(all.end(), command_line.begin(), command_line.end());
  return all;
}

void WarnOfMisspelt(const Surroundings& surroundings) {
  if (surroundings.warn == nullptr) return;
  constexpr absl::string_view kOurs = "DTRAIN_";
  constexpr size_t kShort = 8;
  for (absl::string_view name : surroundings.environment) {
    name = name.substr(0, name.find('='));
    if (!absl::ConsumePrefix(&name, kOurs) || name.size() > 64) continue;
    const auto is = [name](absl::string_view other) { return name == other; };
    if (std::any_of(std::begin(kOthersOfOurs), std::end(kOthersOfOurs), is)) continue;
    std::string best;
    size_t least = name.size() < kShort ? 2 : 3;
    for (const Flag& flag : LaunchFlags()) {
      const std::string variable = FlagVariable(FlagName(flag));
      const size_t edits = Edits(name, absl::string_view(variable).substr(kOurs.size()));
      if (edits == 0 || edits < least) {
        least = edits;
        best = variable;
      }
      if (edits == 0) break;
    }
    if (best.empty() || least == 0) continue;
    surroundings.warn(
        absl::StrCat(kOurs, name, " means nothing to dtrain; did you mean ", best, "?"));
  }
}

int FindMention(const Mentions& mentions, absl::string_view name) {
  for (size_t i = mentions.size(); i-- > 0;) {
    if (FlagName(LaunchFlags()[mentions[i].flag]) == name && mentions[i].value != "false") {
      return static_cast<int>(i);
    }
  }
  return -1;
}

absl::Status ResolveContradictions(Mentions& mentions) {
  for (const auto& pair : kExclusive) {
    absl::Status status = ResolvePair(mentions, pair[0], pair[1], "give one of the two");
    if (!status.ok()) return status;
  }
  int ranks = FindMention(mentions, "np");
  if (ranks < 0 || mentions[ranks].value.empty() || mentions[ranks].value[0] != '-') {
    return absl::OkStatus();
  }
  for (absl::string_view other :
       {"hostfile", "hosts", "rankfile", "nnodes", "rsh", "ssh-config", "ssh-port", "agent"}) {
    absl::Status status =
        ResolvePair(mentions, "np", other, "a negative number of ranks means this machine only");
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace dtrain::cli
