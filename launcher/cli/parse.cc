// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/programs.h"
#include "common/base/text.h"
#include "launcher/cli/elastic_flags.h"
#include "launcher/cli/flag_table.h"
#include "launcher/cli/forwarded_env.h"
#include "launcher/cli/help.h"
#include "launcher/cli/mentions.h"
#include "launcher/cli/mistyped.h"
#include "launcher/cli/options.h"
#include "launcher/cli/programs.h"
#include "launcher/cli/words.h"
#include "launcher/cli/worker_command.h"
#include "launcher/transport/words.h"

namespace dtrain::cli {
namespace {

constexpr absl::string_view kSeeLaunch = "See dtrain launch --help";

// Enough for hours of ordinary output while a terminal is held; what a flood may take of a disk.
constexpr uint64_t kDefaultSpoolBytes = 256 << 20;

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

void NoteScaleUp(const Mentions& mentions, LaunchOptions& options) {
  const int i = FindMention(mentions, "scale-up");
  options.scale_up_asked = i >= 0 && mentions[i].source == kCommandLine;
}

// Likewise, what other sources say of how detached jobs are kept waits for such a job.
void DropIdleDefaults(const Mentions& mentions, DetachOptions& detach) {
  if (detach.on) return;
  const auto is_given = [&mentions](absl::string_view name) {
    const int i = FindMention(mentions, name);
    return i >= 0 && mentions[i].source == kCommandLine;
  };
  if (!is_given("keep")) detach.keep = false;
  if (!is_given("log-limit")) detach.log_limit.reset();
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
  if (part.node_caches() == v1::NODE_CACHES_UNSPECIFIED) {
    part.set_node_caches(v1::NODE_CACHES_AUTO);
  }
  if (part.spool_limit_bytes() == 0) part.set_spool_limit_bytes(kDefaultSpoolBytes);
  const auto names_mps = [](const v1::EnvVar& variable) {
    return variable.name() == "CUDA_MPS_PIPE_DIRECTORY";
  };
  bool mps = std::any_of(part.env().begin(), part.env().end(), names_mps);
  for (const v1::Program& program : part.programs()) {
    mps = mps || std::any_of(program.env().begin(), program.env().end(), names_mps);
  }
  raw.options.job.plan.mps = mps;
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

absl::StatusOr<Command> ParseFlags(const std::vector<std::string>& args,
                                   const Surroundings& surroundings) {
  absl::StatusOr<Words> words = SplitWords(LaunchFlags(), args);
  if (!words.ok()) return words.status();
  Command command;
  for (const char* help : {"--help-all", "--help"}) {
    if (std::find(words->flags.begin(), words->flags.end(), help) == words->flags.end()) continue;
    command.help = FormatHelp(LaunchPage(), absl::string_view(help) == "--help-all");
    return command;
  }
  std::string mistyped;
  absl::Status status = CheckMistyped(*words, &mistyped);
  if (!status.ok()) return status;
  if (!mistyped.empty() && surroundings.warn) surroundings.warn(mistyped);
  WarnOfMisspelt(surroundings);
  absl::StatusOr<Mentions> mentions = CollectAll(words->flags, surroundings);
  if (!mentions.ok()) return mentions.status();
  status = ResolveContradictions(*mentions);
  if (!status.ok()) return status;
  std::vector<RawProgram> programs(1);
  RawLaunch& raw = programs.front().raw;
  raw.options.job.stdin_rank = "0";
  status = SetAll(*mentions, raw);
  if (!status.ok()) return status;
  NoteHostFlag(*mentions, raw.options);
  NoteScaleUp(*mentions, raw.options);
  DropIdleDefaults(*mentions, raw.options.detach);
  status = TakeElastic(*mentions, !words->further.empty(), raw);
  if (!status.ok()) return status;
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
  if (status.ok()) status = CheckElasticEnvironment(programs[0].raw.options);
  if (!status.ok()) return status;
  command.launch = std::move(programs[0].raw.options);
  return command;
}

// Its directory as seen from anywhere; what it does not go together with.
absl::Status CheckStage(const Surroundings& surroundings, LaunchOptions& options) {
  stage::Options& stage = options.stage;
  options.launched_in = surroundings.working_directory;
  if (stage.only_warn && !stage.compare) {
    return absl::InvalidArgumentError("--verify-code-warn requires --verify-code DIR");
  }
  if (stage.keep && (stage.directory.empty() || stage.compare)) {
    return absl::InvalidArgumentError("--stage-keep requires --stage DIR");
  }
  if (stage.directory.empty()) {
    const char* only = !stage.exclude.empty()   ? "--stage-exclude"
                       : !stage.include.empty() ? "--stage-include"
                       : stage.most_bytes       ? "--stage-limit"
                                                : nullptr;
    if (only == nullptr) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(only, " requires --stage DIR or --verify-code DIR"));
  }
  absl::StatusOr<std::string> directory = WorkingDirectory(stage.directory, surroundings);
  if (!directory.ok()) return directory.status();
  stage.directory = *std::move(directory);
  if (!stage.compare) return absl::OkStatus();
  for (const v1::Program& program : options.job.part.programs()) {
    if (program.has_container()) {
      return absl::InvalidArgumentError(
          "--verify-code compares what hosts have, and not what their containers run");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckDetach(const LaunchOptions& options) {
  const DetachOptions& detach = options.detach;
  if (!detach.on) {
    const char* only = detach.no_wait                ? "--no-wait"
                       : !detach.name.empty()        ? "--name"
                       : !detach.key.empty()         ? "--key"
                       : !detach.launcher_on.empty() ? "--launcher-on"
                       : detach.away                 ? "--away"
                       : detach.keep                 ? "--keep"
                       : detach.log_limit            ? "--log-limit"
                                                     : nullptr;
    if (only == nullptr) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(only, " requires -d (--detach)"));
  }
  if (options.job.dry_run) {
    return absl::InvalidArgumentError(
        "-d and --dry-run contradict each other; give one of the two");
  }
  if (detach.away && *detach.away < options.job.lease) {
    return absl::InvalidArgumentError(
        "--away is shorter than --lease: a launcher that is only slow would lose its workers");
  }
  return absl::OkStatus();
}

}  // namespace

void NameFilesFully(LaunchOptions& options) {
  if (options.launched_in.empty()) return;
  transport::WayOptions& ways = options.transport;
  for (std::string* path : {&options.output.log_dir, &options.result_json, &options.timeline,
                            &ways.ssh_config, &ways.tls_directory}) {
    if (!path->empty()) *path = std::filesystem::path(options.launched_in) / *path;
  }
  if (options.output.files) options.output.files->SeenFrom(options.launched_in);
  // A program of --rsh without a slash in its name is looked for in PATH.
  const auto words = transport::SplitWords(ways.rsh);
  if (words.ok() && absl::StrContains(words->front(), '/') && words->front()[0] != '/') {
    ways.rsh = absl::StrCat("'", absl::StrReplaceAll(options.launched_in, {{"'", R"('\'')"}}), "/'",
                            absl::StripLeadingAsciiWhitespace(ways.rsh));
  }
}

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

absl::StatusOr<Command> ParseLaunch(const std::vector<std::string>& args,
                                    const Surroundings& surroundings) {
  absl::StatusOr<Command> launch = ParseFlags({args.begin() + 1, args.end()}, surroundings);
  if (launch.ok()) {
    absl::Status staged = CheckStage(surroundings, launch->launch);
    if (!staged.ok()) launch = std::move(staged);
  }
  if (launch.ok()) {
    if (absl::Status detach = CheckDetach(launch->launch); !detach.ok()) launch = detach;
  }
  if (launch.ok()) {
    launch->launch.detach.words = args;
    job::JobOptions& job = launch->launch.job;
    job.retry_for = job.retry_each
                        ? std::min(launch->launch.transport.connect_timeout, job.start_timeout)
                        : job.start_timeout;
    return launch;
  }
  return absl::InvalidArgumentError(absl::StrCat(launch.status().message(), "\n", kSeeLaunch));
}

}  // namespace dtrain::cli
