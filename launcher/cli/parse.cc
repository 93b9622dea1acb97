// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/programs.h"
#include "common/base/text.h"
#include "launcher/cli/cli11.h"
#include "launcher/cli/config_line.h"
#include "launcher/cli/env_file.h"
#include "launcher/cli/flag_table.h"
#include "launcher/cli/forwarded_env.h"
#include "launcher/cli/help.h"
#include "launcher/cli/options.h"
#include "launcher/cli/programs.h"
#include "launcher/cli/words.h"
#include "launcher/cli/worker_command.h"

namespace dtrain::cli {
namespace {

constexpr absl::string_view kSeeLaunch = "See dtrain launch --help";

// Enough for hours of ordinary output while a terminal is held; what a flood may take of a disk.
constexpr uint64_t kDefaultSpoolBytes = 256 << 20;

// One mention of a flag, and where it stood: a later source is stronger.
enum Source { kConfig, kEnvironment, kCommandLine };
struct Mention {
  Source source;
  int flag;
  std::string value;
  std::string where;  // "--lease", "DTRAIN_LEASE", "lease in /home/me/.config/dtrain/config.toml:3"
};
using Mentions = std::vector<Mention>;

absl::Status At(absl::string_view where, const absl::Status& status) {
  return absl::InvalidArgumentError(absl::StrCat(where, ": ", status.message()));
}

absl::string_view Variable(const Surroundings& surroundings, absl::string_view name) {
  return FindVariable(surroundings, name).value_or("");
}

// -m is a part of the command, and bench, faces and dtrain.run() have commands of their own.
bool IsCommandLineOnly(absl::string_view name) {
  return name == "help" || name == "config" || name == "no-config" || name == "module";
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

struct ConfigFile {
  const std::string& path;
  const std::string& text;

  // "/home/me/.config/dtrain/config.toml:3"
  std::string PlaceOf(absl::string_view key) const {
    const size_t line = LineOfKey(text, key);
    return absl::StrCat(Escape(path), line == 0 ? "" : absl::StrCat(":", line));
  }
};

// `file`: of kConfig, else null.
absl::Status Collect(Source source, const std::vector<std::string>& words, const ConfigFile* file,
                     Mentions& mentions) {
  absl::StatusOr<std::vector<Given>> given = ParseFlags(LaunchFlags(), words);
  if (!given.ok()) return file != nullptr ? At(Escape(file->path), given.status()) : given.status();
  for (Given& one : *given) {
    absl::string_view name = FlagName(LaunchFlags()[one.flag]);
    std::string where = source == kConfig        ? absl::StrCat(name, " in ", file->PlaceOf(name))
                        : source == kEnvironment ? FlagVariable(name)
                                                 : absl::StrCat("--", name);
    mentions.push_back({source, one.flag, std::move(one.value), std::move(where)});
  }
  return absl::OkStatus();
}

absl::Status CollectConfig(const std::string& path, const std::string& text, Mentions& mentions) {
  absl::StatusOr<std::vector<ConfigValue>> values = ParseConfig(text);
  if (!values.ok()) return At(Escape(path), values.status());
  const ConfigFile file{path, text};
  std::vector<std::string> words;
  for (const ConfigValue& value : *values) {
    // Other commands will have sections of their own.
    if (value.section != "launch" && !value.section.empty()) continue;
    int flag = FindLong(LaunchFlags(), value.key);
    if (flag < 0 || IsCommandLineOnly(value.key)) {
      std::string nearest = Nearest(value.key, LongNames(LaunchFlags()));
      return absl::InvalidArgumentError(
          absl::StrCat(file.PlaceOf(value.key), ": unknown key ", Escape(value.key, 80),
                       nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?")));
    }
    // A list is one mention for each value, or one value with commas, as in hosts = ["a", "b"].
    if (LaunchFlags()[flag].repeats) {
      for (const std::string& each : value.values) Append(LaunchFlags()[flag], each, words);
    } else {
      Append(LaunchFlags()[flag], absl::StrJoin(value.values, ","), words);
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
    for (absl::string_view part : absl::StrSplit(value, ',')) {
      Append(flag, std::string(part), words);
    }
  }
  return Collect(kEnvironment, words, nullptr, mentions);
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

// Weakest source first.
absl::StatusOr<Mentions> CollectAll(const std::vector<std::string>& flags,
                                    const Surroundings& surroundings) {
  Mentions command_line;
  absl::Status status = Collect(kCommandLine, flags, nullptr, command_line);
  if (!status.ok()) return status;
  Mentions all;
  ConfigChoice config = ChooseConfig(command_line, surroundings);
  if (!config.path.empty()) {
    absl::StatusOr<std::string> text = surroundings.read(config.path);
    if (text.ok()) {
      status = CollectConfig(config.path, *text, all);
    } else if (config.must_exist || !absl::IsNotFound(text.status())) {
      status = At("configuration file", text.status());
    }
    if (!status.ok()) return status;
  }
  status = CollectEnvironment(surroundings, all);
  if (!status.ok()) return status;
  all.insert(all.end(), command_line.begin(), command_line.end());
  return all;
}

// Flags that answer the same question. From one source they contradict each other; otherwise the
// stronger source's answer makes the weaker's void.
constexpr absl::string_view kExclusive[][2] = {
    {"hostfile", "hosts"},  {"rankfile", "ppn"},  {"rankfile", "map-by"}, {"rankfile", "nnodes"},
    {"rsh", "ssh-config"},  {"rsh", "ssh-port"},  {"rsh", "agent"},       {"verbose", "quiet"},
    {"include", "exclude"}, {"log-dir", "output"}};

int FindMention(const Mentions& mentions, absl::string_view name) {
  for (size_t i = mentions.size(); i-- > 0;) {
    if (FlagName(LaunchFlags()[mentions[i].flag]) == name && mentions[i].value != "false") {
      return static_cast<int>(i);
    }
  }
  return -1;
}

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

absl::Status SetAll(const Mentions& mentions, RawLaunch& raw) {
  for (const Mention& mention : mentions) {
    absl::Status status = LaunchFlags()[mention.flag].set(mention.value, raw);
    if (!status.ok()) return At(mention.where, status);
  }
  plan::PlanOptions& plan = raw.options.job.plan;
  if (raw.per_node) {
    if (plan.per_node) {
      return absl::InvalidArgumentError(absl::StrCat("--map-by ppr:", *raw.per_node,
                                                     ":node and --ppn contradict each other; give "
                                                     "one of the two"));
    }
    if (plan.ranks_per_node && *plan.ranks_per_node != *raw.per_node) {
      return absl::InvalidArgumentError(
          absl::StrCat("--map-by ppr:", *raw.per_node, ":node and --ppn ", *plan.ranks_per_node,
                       " contradict each other; give one of the two"));
    }
    plan.ranks_per_node = raw.per_node;
  }
  return absl::OkStatus();
}

// Defaults of a configuration file or the environment wait for a launch that needs them; who gives
// such a flag with this very command means hosts.
void NoteHostFlag(const Mentions& mentions, LaunchOptions& options) {
  for (absl::string_view name : {"rsh", "ssh-config", "ssh-port", "agent"}) {
    const int i = FindMention(mentions, name);
    if (i >= 0 && mentions[i].source == kCommandLine) options.host_flag = mentions[i].where;
  }
}

void Take(ForwardedEnv env, google::protobuf::RepeatedPtrField<v1::EnvVar>& variables,
          google::protobuf::RepeatedPtrField<std::string>& explicit_names) {
  for (v1::EnvVar& variable : env.variables) variables.Add()->Swap(&variable);
  for (std::string& name : env.explicit_names) explicit_names.Add(std::move(name));
}

absl::StatusOr<std::string> WorkingDirectory(const std::string& dir,
                                             const Surroundings& surroundings) {
  if (!dir.empty() && dir[0] == '/') return dir;
  if (surroundings.working_directory.empty()) {
    return absl::InvalidArgumentError(
        "the current directory no longer exists; give --wdir with a full path");
  }
  return dir.empty() ? surroundings.working_directory
                     : absl::StrCat(surroundings.working_directory, "/", dir);
}

absl::Status AddProgram(const RawProgram& from, bool own_environment,
                        const Surroundings& surroundings, v1::JobPart& part) {
  v1::Program& program = *part.add_programs();
  if (!from.command.empty() && from.command[0].empty()) {
    return absl::InvalidArgumentError("the command's name is empty");
  }
  absl::StatusOr<std::string> dir = WorkingDirectory(from.raw.working_directory, surroundings);
  if (!dir.ok()) return dir.status();
  for (std::string& word : WorkerCommand(from.command, from.raw.module, *dir, surroundings)) {
    program.add_argv(std::move(word));
  }
  program.set_working_directory(*std::move(dir));
  if (!from.raw.container.image().empty()) *program.mutable_container() = from.raw.container;
  if (!own_environment) return absl::OkStatus();
  absl::StatusOr<ForwardedEnv> env =
      BuildForwardedEnv(surroundings.environment, {/*all=*/false, from.raw.exports});
  if (!env.ok()) return env.status();
  Take(*std::move(env), *program.mutable_env(), *program.mutable_explicit_env());
  return absl::OkStatus();
}

// What the programs of a job share, from the first, and each program's own. `shared`: the -x of
// several programs that belong to none of them.
absl::Status SetPart(std::vector<RawProgram>& programs, const std::vector<std::string>& shared,
                     const Surroundings& surroundings) {
  RawLaunch& raw = programs[0].raw;
  v1::JobPart& part = raw.options.job.part;
  const bool several = programs.size() > 1;
  absl::StatusOr<std::vector<std::string>> exports = ReadEnvFiles(raw.env_files, surroundings);
  if (!exports.ok()) return exports.status();
  // The last of a name counts: -x wins over files, wherever it stands.
  const std::vector<std::string>& flags = several ? shared : raw.exports;
  exports->insert(exports->end(), flags.begin(), flags.end());
  ForwardOptions forward{raw.forward_all, *std::move(exports)};
  for (const RawProgram& program : programs) {
    absl::Status added = AddProgram(program, several, surroundings, part);
    if (!added.ok()) return added;
  }
  for (const std::string& word : CommandWords(part)) {
    forward.argv_bytes += word.size() + 1 + sizeof(char*);
  }
  absl::StatusOr<ForwardedEnv> env = BuildForwardedEnv(surroundings.environment, forward);
  if (!env.ok()) return env.status();
  Take(*std::move(env), *part.mutable_env(), *part.mutable_explicit_env());
  part.set_inherit_agent_env(!raw.forward_all);
  part.mutable_contracts()->Add(raw.contracts.begin(), raw.contracts.end());
  part.mutable_contracts()->Add(raw.emulated.begin(), raw.emulated.end());
  if (!raw.options.job.plan.tensorflow.empty()) part.add_contracts(v1::CONTRACT_TENSORFLOW);
  if (part.spool_limit_bytes() == 0) part.set_spool_limit_bytes(kDefaultSpoolBytes);
  auto grace = std::chrono::duration_cast<std::chrono::milliseconds>(raw.options.job.grace);
  // 32 bits of milliseconds are 49 days; nobody waits longer for a TERM.
  part.set_grace_ms(static_cast<uint32_t>(std::min<int64_t>(grace.count(), UINT32_MAX)));
  return absl::OkStatus();
}

// -x in the configuration file or a variable is for all programs.
std::vector<std::string> SharedExports(const Mentions& mentions) {
  std::vector<std::string> shared;
  for (const Mention& mention : mentions) {
    if (mention.source != kCommandLine && FlagName(LaunchFlags()[mention.flag]) == "export") {
      shared.push_back(mention.value);
    }
  }
  return shared;
}

// What the command line says of containers, or all else.
v1::Container ContainerOf(const Mentions& mentions, bool command_line) {
  RawLaunch raw;
  for (const Mention& mention : mentions) {
    const Flag& flag = LaunchFlags()[mention.flag];
    if ((mention.source == kCommandLine) != command_line) continue;
    if (!absl::StartsWith(FlagName(flag), "container")) continue;
    flag.set(mention.value, raw).IgnoreError();  // SetAll has told
  }
  return std::move(raw.container);
}

absl::StatusOr<Command> ParseLaunch(const std::vector<std::string>& args,
                                    const Surroundings& surroundings) {
  absl::StatusOr<Words> words = SplitWords(LaunchFlags(), args);
  if (!words.ok()) return words.status();
  Command command;
  if (std::find(words->flags.begin(), words->flags.end(), "--help") != words->flags.end()) {
    command.help = FormatHelp(LaunchPage());
    return command;
  }
  absl::StatusOr<Mentions> mentions = CollectAll(words->flags, surroundings);
  if (!mentions.ok()) return mentions.status();
  absl::Status status = ResolveContradictions(*mentions);
  if (!status.ok()) return status;
  std::vector<RawProgram> programs(1);
  RawLaunch& raw = programs.front().raw;
  raw.options.job.stdin_rank = "0";
  status = SetAll(*mentions, raw);
  if (!status.ok()) return status;
  NoteHostFlag(*mentions, raw.options);
  if (words->command.empty() && !raw.options.job.dry_run) {
    return absl::InvalidArgumentError(
        "no command to run; write it after the flags: dtrain launch -np 4 python train.py");
  }
  programs[0].command = std::move(words->command);
  absl::StatusOr<std::vector<RawProgram>> further = ParsePrograms(std::move(words->further));
  if (!further.ok()) return further.status();
  std::move(further->begin(), further->end(), std::back_inserter(programs));
  programs[0].raw.container = ContainerOf(*mentions, /*command_line=*/true);
  status = JoinContainers(ContainerOf(*mentions, /*command_line=*/false), programs);
  if (!status.ok()) return status;
  std::vector<std::string> shared;
  if (programs.size() > 1) {
    shared = SharedExports(*mentions);  // the weaker sources' came first
    std::vector<std::string>& own = programs[0].raw.exports;
    own.erase(own.begin(), own.begin() + static_cast<std::ptrdiff_t>(shared.size()));
    status = JoinPrograms(programs);
  }
  if (status.ok()) status = SetPart(programs, shared, surroundings);
  if (!status.ok()) return status;
  command.kind = Command::Kind::kLaunch;
  command.launch = std::move(programs[0].raw.options);
  return command;
}

}  // namespace

absl::StatusOr<LaunchOptions> ParseHosts(const std::vector<std::string>& words,
                                         const Surroundings& surroundings) {
  absl::StatusOr<Mentions> mentions = CollectAll(words, surroundings);
  if (!mentions.ok()) return mentions.status();
  const std::vector<Flag> ours = HostFlags();
  std::erase_if(*mentions, [&](const Mention& mention) {
    return FindLong(ours, FlagName(LaunchFlags()[mention.flag])) < 0;
  });
  absl::Status status = ResolveContradictions(*mentions);
  if (!status.ok()) return status;
  RawLaunch raw;
  status = SetAll(*mentions, raw);
  if (!status.ok()) return status;
  return std::move(raw.options);
}

absl::StatusOr<Command> ParseCommandLine(const std::vector<std::string>& args,
                                         const Surroundings& surroundings) {
  Command command;
  if (args.empty()) return absl::InvalidArgumentError("no command given. See dtrain --help");
  const std::string& name = args[0];
  if (name == "launch") {
    absl::StatusOr<Command> launch =
        ParseLaunch(std::vector<std::string>(args.begin() + 1, args.end()), surroundings);
    if (launch.ok()) return launch;
    return absl::InvalidArgumentError(absl::StrCat(launch.status().message(), "\n", kSeeLaunch));
  }
  if (name == "--help" || name == "-h" || name == "help") {
    command.help = FormatHelp(GeneralPage());
    return command;
  }
  if (name == "version" || name == "--version" || name == "-V") {
    command.kind = Command::Kind::kVersion;
    return command;
  }
  std::vector<std::string> known = {"help", "--help", "--version"};
  for (const Page::Entry& entry : GeneralPage().list) known.push_back(entry.word);
  std::string nearest = Nearest(name, known);
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown command ", Escape(name, 80),
      nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?"), "\nSee dtrain --help"));
}

}  // namespace dtrain::cli
