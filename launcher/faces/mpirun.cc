// SPDX-License-Identifier: Apache-2.0
// mpirun and mpiexec: the flags of Open MPI 4 and 5, and those of Hydra (MPICH, Intel MPI) that
// mean nothing else there.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/text.h"
#include "launcher/cli/flag_table.h"
#include "launcher/faces/face.h"
#include "launcher/faces/mca_parameters.h"

namespace dtrain::faces {
namespace {

using Becomes = FaceFlag::Becomes;

constexpr absl::string_view kCores = "dtrain shares out the cores; see --bind, --cores-per-rank";
constexpr absl::string_view kNoLocal = "name only the other hosts, or add --exclude THIS-HOST";
constexpr absl::string_view kPrrte = "dtrain takes the place of PRRTE and of the PMIx server";
constexpr absl::string_view kDebuggers = "dtrain starts no debugger";
constexpr absl::string_view kFiles =
    "dtrain copies no program; the nodes must have it, at the same path";

std::vector<FaceFlag> PlaceFlags() {
  return {
      {"--np,-n,-c,-np", "N", Becomes::kFlag, "--np"},
      {"--host,-H,--hosts", "LIST", Becomes::kFlag, "--hosts"},
      {"--hostfile,--machinefile,-f,--default-hostfile", "FILE", Becomes::kFlag, "--hostfile"},
      {"--npernode,-N", "N", Becomes::kFlag, "--ppn"},
      {"--ppn,--perhost", "N", Becomes::kFlag, "--ppn",
       "ranks that are left begin again with the first host"},
      {"--pernode", "", Becomes::kFlag, "--ppn 1"},
      {"--bynode,--rr", "", Becomes::kFlag, "--map-by node"},
      {"--byslot", "", Becomes::kFlag, "--map-by slot"},
      {"--map-by", "HOW", Becomes::kOwn, "",
       "node, ppr:N:node, rankfile:FILE=F; slot and all that count cores: host after host"},
      {"--rank-by", "HOW", Becomes::kIgnored, "ranks are numbered as they are mapped"},
      {"--bind-to", "WHAT", Becomes::kOwn, "", "dtrain launch --bind: none, core or numa"},
      {"--rankfile,-rf", "FILE", Becomes::kFlag, "--rankfile"},
      {"--oversubscribe", "", Becomes::kFlag, "--oversubscribe"},
      {"--nooversubscribe", "", Becomes::kIgnored, ""},
      {"--npersocket", "N", Becomes::kRejected,
       "give --npernode the number of ranks on the whole node"},
      {"--nolocal", "", Becomes::kRejected, kNoLocal},
      {"--cpus-per-proc,--cpus-per-rank", "N", Becomes::kOwn, "",
       "sets OMP_NUM_THREADS, unless it is set"},
      {"--cpu-set,--cpu-list,--slot-list", "LIST", Becomes::kIgnored, kCores},
      {"--use-hwthread-cpus", "", Becomes::kIgnored, ""},
      {"--report-bindings,--display-map,--display-allocation,--display-devel-map", "",
       Becomes::kFlag, "--verbose"},
      {"--display", "WHAT", Becomes::kOwn, "", "dtrain launch --verbose"},
      {"--do-not-launch", "", Becomes::kFlag, "--dry-run"},
  };
}

std::vector<FaceFlag> EnvironmentFlags() {
  return {
      {"-x", "NAME[=VALUE]", Becomes::kOwn, "", "dtrain launch -x; an unset variable is left out"},
      {"--env", "NAME VALUE", Becomes::kOwn, "", "dtrain launch -x NAME=VALUE"},
      {"--genv", "NAME VALUE", Becomes::kOwn, "", "the same, for all programs"},
      {"--envlist,--genvlist", "NAMES", Becomes::kOwn, "", "dtrain launch -x for each"},
      {"--envall,--genvall", "", Becomes::kIgnored, ""},
      {"--envnone,--genvnone", "", Becomes::kFlag, "--env none"},
      {"--mca,--omca,--gmca", "KEY VALUE", Becomes::kOwn, "",
       "OMPI_MCA_KEY for all programs; plm_rsh_args, plm_rsh_agent, ..._default_hostfile, "
       "..._oversubscribe, ..._binding_policy, ..._if_include and ..._sigkill_timeout also for "
       "dtrain"},
      {"--prtemca,--pmixmca", "KEY VALUE", Becomes::kOwn, "",
       "plm_ssh_args, plm_ssh_agent, ..._default_hostfile, ..._binding_policy and "
       "..._sigkill_timeout for dtrain; others are ignored"},
      {"--wdir,-wd,--wd", "DIR", Becomes::kFlag, "--wdir"},
      {"--path", "PATHS", Becomes::kIgnored, "programs are looked up in PATH"},
      {"--iface", "NAME", Becomes::kFlag, "--net"},
      {"--launcher,--bootstrap", "NAME", Becomes::kIgnored,
       "hosts are reached by ssh, or by --rsh"},
      {"--launcher-exec,--bootstrap-exec", "COMMAND", Becomes::kFlag, "--rsh"},
  };
}

std::vector<FaceFlag> OutputFlags() {
  return {
      {"--tag-output,--prepend-rank,-l", "", Becomes::kOwn, "", "dtrain launch --tag-output rank"},
      {"--timestamp-output", "", Becomes::kFlag, "--timestamps"},
      {"--output-filename", "DIR", Becomes::kOwn, "", "files DIR/1/rank.RANK/{stdout,stderr}"},
      {"--output", "HOW", Becomes::kOwn, "",
       "tag, timestamp, dir=DIR, file=FILE, by commas; with a % a pattern of dtrain launch"},
      {"--merge-stderr-to-stdout", "", Becomes::kIgnored, "stdout and stderr stay apart"},
      {"--stdin", "WHO", Becomes::kFlag, "--stdin"},
      {"--timeout", "S", Becomes::kFlag, "--timeout"},
      {"--quiet,-q", "", Becomes::kFlag, "--quiet"},
      {"--verbose,-v,-vv,-vvv", "", Becomes::kFlag, "--verbose"},
  };
}

std::vector<FaceFlag> OtherFlags() {
  return {
      {"--allow-run-as-root,--leave-session-attached,--noprefix,--get-stack-traces,"
       "--report-state-on-timeout,--print-all-exitcodes,--mpi,--debug-daemons,--debug-devel,-d",
       "", Becomes::kIgnored, ""},
      {"--prefix,--personality,--am,--tune", "VALUE", Becomes::kIgnored, ""},
      {"--preload-binary", "", Becomes::kRejected, kFiles},
      {"--preload-files", "FILES", Becomes::kRejected, kFiles},
      {"--app,--configfile", "FILE", Becomes::kRejected,
       "write the programs on the command line, with ':' between them"},
      {"--dvm", "URI", Becomes::kRejected, "dtrain has agents of its own; see --agent tcp"},
      {"--ompi-server", "URI", Becomes::kRejected, "jobs do not connect to each other"},
      {"--enable-recovery,--continuous,--disable-auto-cleanup", "", Becomes::kRejected,
       "a job ends when one of its ranks fails"},
      {"--debug,--debugger,--tv,--xterm", "", Becomes::kRejected, kDebuggers},
      {"--outfile-pattern,--errfile-pattern", "PATTERN", Becomes::kRejected,
       "use dtrain launch's --output"},
  };
}

const std::vector<FaceFlag>& MpirunFlags() {
  static const std::vector<FaceFlag>* flags = [] {
    auto* all = new std::vector<FaceFlag>();
    for (const auto& group : {PlaceFlags(), EnvironmentFlags(), OutputFlags(), OtherFlags()}) {
      all->insert(all->end(), group.begin(), group.end());
    }
    return all;
  }();
  return *flags;
}

// The cores of a rank, on which a program of OpenMP would have as many threads.
absl::Status TakeCores(absl::string_view flag, absl::string_view number,
                       const cli::Surroundings& surroundings, LineBuilder& line) {
  uint32_t cores = 0;
  if (!absl::SimpleAtoi(number, &cores) || cores == 0) {
    return BadValue(flag, number, "a number of cores");
  }
  const bool is_set = IsSet(surroundings, "OMP_NUM_THREADS");
  if (!is_set) line.Export("OMP_NUM_THREADS", absl::StrCat(cores));
  const absl::string_view effect = is_set ? " ignored: " : " sets OMP_NUM_THREADS only: ";
  line.Note(absl::StrCat(flag, " ", cores, effect, kCores));
  return absl::OkStatus();
}

// "PE=4" behind a ':' of --map-by.
absl::Status TakeModifier(absl::string_view modifier, const cli::Surroundings& surroundings,
                          LineBuilder& line) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(modifier, absl::MaxSplits('=', 1));
  const std::string name = absl::AsciiStrToLower(parts.first);
  if (name == "oversubscribe") {
    line.Switch("--oversubscribe");
  } else if (name == "pe") {
    return TakeCores("--map-by PE", parts.second, surroundings, line);
  } else if (name == "pe-list") {
    line.Note(absl::StrCat("--map-by PE-LIST ignored: ", kCores));
  } else if (name == "nolocal") {
    return absl::InvalidArgumentError(
        absl::StrCat("--map-by NOLOCAL is not supported: ", kNoLocal));
  }
  return absl::OkStatus();
}

absl::Status MapBy(const cli::Surroundings& surroundings, LineBuilder& line) {
  const std::string text = line.Value("map-by");
  if (text.empty()) return absl::OkStatus();
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  const std::string how = absl::AsciiStrToLower(parts[0]);
  size_t modifiers = 1;
  if (how == "ppr") {
    if (parts.size() < 3 || absl::AsciiStrToLower(parts[2]) != "node") {
      return absl::InvalidArgumentError(absl::StrCat(
          "--map-by ", Escape(text, 60), " is not supported: ppr:N:node is the only count"));
    }
    modifiers = 3;
    line.Flag("--map-by", absl::StrCat("ppr:", parts[1], ":node"));
  } else if (how == "node") {
    line.Flag("--map-by", "node");
  } else if (how != "slot" && how != "rankfile" && !how.empty()) {
    line.Note(absl::StrCat("--map-by ", Escape(how, 60),
                           ": ranks fill one host after another; cores go by --bind"));
  }
  bool has_rankfile = line.Has("rankfile");
  for (size_t i = modifiers; i < parts.size(); ++i) {
    for (const absl::string_view modifier : absl::StrSplit(parts[i], ',')) {
      constexpr absl::string_view kFile = "file=";
      if (how == "rankfile" && absl::StartsWithIgnoreCase(modifier, kFile)) {
        line.Flag("--rankfile", modifier.substr(kFile.size()));
        has_rankfile = true;
      } else if (absl::Status status = TakeModifier(modifier, surroundings, line); !status.ok()) {
        return status;
      }
    }
  }
  if (how != "rankfile" || has_rankfile) return absl::OkStatus();
  return absl::InvalidArgumentError("--map-by rankfile: name the file with --rankfile FILE");
}

// False: the parameter means nothing to dtrain.
bool TakeParameter(const Mention& mention, McaParameters& parameters, LineBuilder& line) {
  const std::string& key = mention.values[0];
  const std::string& value = mention.values[1];
  const std::string spelled = absl::StrCat(mention.spelled, " ", key);
  if (NoteParameter(key, value, spelled, parameters)) return true;
  if (key == "btl_tcp_if_include") {
    if (!absl::StrContains(value, ',')) line.Flag("--net", value);
  } else if (key == "odls_base_sigkill_timeout") {
    line.Flag("--grace", value);
  } else {
    return false;
  }
  return true;
}

void Environment(LineBuilder& line, const cli::Surroundings& surroundings,
                 McaParameters& parameters, std::vector<std::string>& shared) {
  for (const Mention* each : line.All("x")) {
    const std::string& text = each->values[0];
    if (absl::StrContains(text, '=') || IsSet(surroundings, text)) {
      line.Flag("--export", text);
    } else {
      line.Note(absl::StrCat("-x ", Escape(text, 60), " ignored: it is not set here"));
    }
  }
  for (const Mention* each : line.All("env")) line.Export(each->values[0], each->values[1]);
  for (const Mention* each : line.All("envlist")) {
    for (const absl::string_view name : absl::StrSplit(each->values[0], ',')) {
      if (IsSet(surroundings, name)) line.Flag("--export", name);
    }
  }
  for (const Mention* each : line.All("genv")) {
    shared.push_back(absl::StrCat(each->values[0], "=", each->values[1]));
  }
  for (const Mention* each : line.All("mca")) {
    shared.push_back(absl::StrCat("OMPI_MCA_", each->values[0], "=", each->values[1]));
    TakeParameter(*each, parameters, line);
  }
  for (const Mention* each : line.All("prtemca")) {
    if (TakeParameter(*each, parameters, line)) continue;
    line.Note(absl::StrCat(Escape(each->spelled, 80), " ", Escape(each->values[0], 60),
                           " ignored: ", kPrrte));
  }
}

// In dtrain's patterns a % begins a field.
std::string Literal(absl::string_view path) { return absl::StrReplaceAll(path, {{"%", "%%"}}); }

void OutputFolder(absl::string_view dir, LineBuilder& line) {
  line.Flag("--output", absl::StrCat(Literal(dir), "/1/rank.%R/%s"));
}

// Open MPI 5's --output: directives, with qualifiers behind colons.
void Output(LineBuilder& line, bool& tags) {
  for (const Mention* each : line.All("output")) {
    const std::string& how = each->values[0];
    // dtrain's own has a pattern.
    if (how.find('%') < how.find('=')) {
      line.Flag("--output", how);
      continue;
    }
    for (const absl::string_view word :
         absl::StrSplit(how, absl::ByAnyChar(",:"), absl::SkipEmpty())) {
      const std::pair<absl::string_view, absl::string_view> parts =
          absl::StrSplit(word, absl::MaxSplits('=', 1));
      const std::string directive = absl::AsciiStrToLower(parts.first);
      if (directive == "timestamp") {
        line.Switch("--timestamps");
      } else if (directive == "dir" && !parts.second.empty()) {
        OutputFolder(parts.second, line);
      } else if (directive == "file" && !parts.second.empty()) {
        line.Flag("--output", absl::StrCat(Literal(parts.second), ".%r"));
      } else if (absl::StartsWith(directive, "tag")) {
        tags = true;
      } else {
        line.Note(absl::StrCat("--output ", Escape(word, 60),
                               " ignored: only tag, timestamp, dir=DIR, file=FILE and dtrain's "
                               "patterns with a % are understood"));
      }
    }
  }
}

// Open MPI adds up the hosts of all --host.
void JoinHosts(std::vector<Mention>& mentions) {
  const auto is_hosts = [](const Mention& each) {
    return each.flag != nullptr && NameOf(*each.flag) == "host";
  };
  const auto first = std::find_if(mentions.begin(), mentions.end(), is_hosts);
  if (first == mentions.end()) return;
  for (auto it = first + 1; it != mentions.end(); ++it) {
    if (is_hosts(*it)) absl::StrAppend(&first->values[0], ",", it->values[0]);
  }
  mentions.erase(std::remove_if(first + 1, mentions.end(), is_hosts), mentions.end());
}

// Flags that are about one program's ranks, to mpirun or to dtrain launch; the others are the whole
// job's.
bool IsOfEach(absl::string_view name) {
  return name == "np" || name == "ppn" || name == "map-by" || name == "export" || name == "wdir" ||
         name == "gpus-per-rank" || name == "hosts" || name == "module" ||
         absl::StartsWith(name, "container");
}

// mpirun lets a later program repeat what the first says of the whole job.
void DropRepeated(const std::vector<std::string>& first, std::vector<std::string>& flags) {
  const std::vector<cli::Flag>& ours = cli::LaunchFlags();
  std::vector<std::string> kept;
  for (auto it = flags.begin(); it != flags.end();) {
    const size_t equals = it->find('=');
    const absl::string_view name = absl::string_view(*it).substr(0, equals);
    const int index = cli::FindLong(ours, absl::StripPrefix(name, "--"));
    if (index < 0) return;  // left to dtrain launch
    const cli::Flag& flag = ours[static_cast<size_t>(index)];
    const bool has_word = !flag.value.empty() && equals == std::string::npos;
    const auto end = has_word && it + 1 != flags.end() ? it + 2 : it + 1;
    const bool repeated = !IsOfEach(cli::FlagName(flag)) &&
                          std::search(first.begin(), first.end(), it, end) != first.end();
    if (!repeated) kept.insert(kept.end(), it, end);
    it = end;
  }
  flags = std::move(kept);
}

absl::StatusOr<Line> TranslateProgram(const std::vector<std::string>& args, bool first,
                                      const cli::Surroundings& surroundings,
                                      std::vector<std::string>& shared, Translation& out) {
  absl::StatusOr<FaceWords> words = SplitFace(MpirunFlags(), {.one_dash = true}, args);
  if (!words.ok()) return words.status();
  JoinHosts(words->mentions);
  LineBuilder line(out);
  absl::Status status = line.Take(*words);
  if (status.ok()) status = MapBy(surroundings, line);
  if (status.ok() && line.Has("cpus-per-proc")) {
    status = TakeCores("--cpus-per-proc", line.Value("cpus-per-proc"), surroundings, line);
  }
  if (status.ok()) status = Bind("--bind-to", line.Value("bind-to"), line);
  if (!status.ok()) return status;
  McaParameters parameters = first ? ParametersOfEnvironment(line, surroundings) : McaParameters();
  Environment(line, surroundings, parameters, shared);
  status = ApplyParameters(parameters, line, out);
  if (!status.ok()) return status;
  out.ppn_wraps = out.ppn_wraps || line.Has("ppn");  // Hydra's
  if (line.line().command.empty()) return absl::InvalidArgumentError("no program to run");
  if (const std::string dir = line.Value("output-filename"); !dir.empty()) OutputFolder(dir, line);
  if (line.Has("display")) line.Switch("--verbose");
  bool tags = line.Has("tag-output");
  Output(line, tags);
  // mpirun's output has no tags.
  if (first) line.Flag("--tag-output", tags ? "rank" : "none");
  return std::move(line.line());
}

absl::StatusOr<Translation> TranslateMpirun(const std::vector<std::string>& args,
                                            const cli::Surroundings& surroundings) {
  Translation out;
  out.grace = std::chrono::seconds(1);  // odls_base_sigkill_timeout
  std::vector<std::string> shared;
  for (auto begin = args.begin();;) {
    const auto end = std::find(begin, args.end(), ":");
    // mpirun skips an empty program: scripts put a ':' behind each one.
    if (begin != end) {
      absl::StatusOr<Line> line =
          TranslateProgram({begin, end}, out.programs.empty(), surroundings, shared, out);
      if (!line.ok()) return line.status();
      if (!out.programs.empty()) DropRepeated(out.programs.front().flags, line->flags);
      out.programs.push_back(*std::move(line));
    }
    if (end == args.end()) break;
    begin = end + 1;
  }
  if (out.programs.empty()) return absl::InvalidArgumentError("no program to run");
  for (Line& line : out.programs) {
    for (const std::string& variable : shared) {
      line.flags.emplace_back("--export");
      line.flags.push_back(variable);
    }
  }
  return out;
}

}  // namespace

const Face kMpirun = {
    .name = "mpirun",
    .usage = "mpirun [FLAGS] PROGRAM [ARGUMENTS...] [: [FLAGS] PROGRAM [ARGUMENTS...]]...",
    .text =
        "Starts a job with the command line of mpirun (Open MPI) or mpiexec (Open MPI, MPICH).\n",
    .flags = MpirunFlags,
    .spelling = {.one_dash = true},
    .translate = TranslateMpirun,
};

const Face kMpiexec = {
    .name = "mpiexec",
    .usage = "mpiexec [FLAGS] PROGRAM [ARGUMENTS...] [: [FLAGS] PROGRAM [ARGUMENTS...]]...",
    .text = kMpirun.text,
    .flags = MpirunFlags,
    .spelling = {.one_dash = true},
    .translate = TranslateMpirun,
};

}  // namespace dtrain::faces
