// SPDX-License-Identifier: Apache-2.0
// mpirun and mpiexec: the flags of Open MPI 4 and 5, and those of Hydra (MPICH, Intel MPI) that
// mean nothing else there.
#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/text.h"
#include "launcher/faces/face.h"

namespace dtrain::faces {
namespace {

using Becomes = FaceFlag::Becomes;

constexpr absl::string_view kCores = "dtrain shares out cores by --bind";
constexpr absl::string_view kDebuggers = "dtrain starts no debugger";
constexpr absl::string_view kFiles =
    "dtrain copies no program; the nodes must have it, at the same path";

std::vector<FaceFlag> PlaceFlags() {
  return {
      {"--np,-n,-c,-np", "N", Becomes::kFlag, "--np"},
      {"--host,-H,--hosts", "LIST", Becomes::kFlag, "--hosts"},
      {"--hostfile,--machinefile,-f", "FILE", Becomes::kFlag, "--hostfile"},
      {"--npernode,-N", "N", Becomes::kFlag, "--ppn"},
      {"--ppn,--perhost", "N", Becomes::kFlag, "--ppn",
       "ranks that are left begin again with the first host"},
      {"--pernode", "", Becomes::kFlag, "--ppn 1"},
      {"--bynode,--rr", "", Becomes::kFlag, "--map-by node"},
      {"--byslot", "", Becomes::kFlag, "--map-by slot"},
      {"--map-by", "HOW", Becomes::kOwn, "",
       "node, ppr:N:node; slot and all that count cores: host after host"},
      {"--rank-by", "HOW", Becomes::kIgnored, "ranks are numbered as they are mapped"},
      {"--bind-to", "WHAT", Becomes::kOwn, "", "dtrain launch --bind: none, core or numa"},
      {"--rankfile,-rf", "FILE", Becomes::kFlag, "--rankfile"},
      {"--oversubscribe", "", Becomes::kFlag, "--oversubscribe"},
      {"--nooversubscribe", "", Becomes::kIgnored, ""},
      {"--cpus-per-proc,--cpus-per-rank,--cpu-set,--cpu-list,--slot-list", "LIST",
       Becomes::kIgnored, kCores},
      {"--use-hwthread-cpus", "", Becomes::kIgnored, ""},
      {"--report-bindings,--display-map,--display-allocation,--display-devel-map", "",
       Becomes::kFlag, "--verbose"},
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
       "OMPI_MCA_KEY for all programs; plm_rsh_args, ..._if_include and ..._sigkill_timeout also "
       "for dtrain"},
      {"--prtemca,--pmixmca", "KEY VALUE", Becomes::kIgnored,
       "dtrain takes the place of PRRTE and of the PMIx server"},
      {"--wdir,-wd,--wd", "DIR", Becomes::kFlag, "--wdir"},
      {"--path", "PATHS", Becomes::kIgnored, "programs are looked up in PATH"},
      {"--iface", "NAME", Becomes::kFlag, "--net"},
      {"--launcher,--bootstrap", "NAME", Becomes::kIgnored,
       "hosts are reached by ssh, or by --rsh"},
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
      {"--verbose,-v", "", Becomes::kFlag, "--verbose"},
  };
}

std::vector<FaceFlag> OtherFlags() {
  return {
      {"--allow-run-as-root,--leave-session-attached,--noprefix,--get-stack-traces,"
       "--report-state-on-timeout,--print-all-exitcodes,--mpi",
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

absl::Status MapBy(LineBuilder& line) {
  const std::string text = absl::AsciiStrToLower(line.Value("map-by"));
  if (text.empty()) return absl::OkStatus();
  std::vector<std::string> parts = absl::StrSplit(text, ':');
  size_t modifiers = 1;
  if (parts[0] == "ppr") {
    if (parts.size() < 3 || parts[2] != "node") {
      return absl::InvalidArgumentError(absl::StrCat(
          "--map-by ", Escape(text, 60), " is not supported: ppr:N:node is the only count"));
    }
    modifiers = 3;
    line.Flag("--map-by", absl::StrCat("ppr:", parts[1], ":node"));
  } else if (parts[0] == "node") {
    line.Flag("--map-by", "node");
  } else if (parts[0] != "slot" && !parts[0].empty()) {
    line.Note(absl::StrCat("--map-by ", Escape(parts[0], 60),
                           ": ranks fill one host after another; cores go by --bind"));
  }
  for (size_t i = modifiers; i < parts.size(); ++i) {
    for (const absl::string_view modifier : absl::StrSplit(parts[i], ',')) {
      if (modifier == "oversubscribe") line.Switch("--oversubscribe");
      if (absl::StartsWith(modifier, "pe=")) {
        line.Note(absl::StrCat("--map-by ", modifier, " ignored: ", kCores));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status BindTo(LineBuilder& line) {
  std::string what = absl::AsciiStrToLower(line.Value("bind-to"));
  what = what.substr(0, what.find(':'));
  if (what.empty()) return absl::OkStatus();
  if (what == "none" || what == "board") {
    line.Flag("--bind", "none");
  } else if (what == "socket" || what == "package" || what == "numa") {
    line.Flag("--bind", "numa");
  } else if (what == "core" || what == "hwthread" || absl::EndsWith(what, "cache") ||
             what == "user") {
    line.Flag("--bind", "core");
  } else {
    return absl::InvalidArgumentError(absl::StrCat(
        "--bind-to: \"", Escape(what, 60), "\" is not none, hwthread, core, socket or numa"));
  }
  return absl::OkStatus();
}

// What the parameter means for us, besides.
absl::Status TakeParameter(const std::string& key, const std::string& value, LineBuilder& line) {
  if (key == "plm_rsh_args") {
    std::vector<absl::string_view> words = absl::StrSplit(value, ' ', absl::SkipEmpty());
    if (words.size() != 2 || words[0] != "-p") {
      return absl::InvalidArgumentError(
          absl::StrCat("--mca plm_rsh_args \"", Escape(value, 60),
                       "\": only \"-p PORT\" is understood; put the rest into ~/.ssh/config"));
    }
    line.Flag("--ssh-port", words[1]);
  } else if (key == "plm_rsh_agent" && value != "ssh") {
    line.Flag("--rsh", value);
  } else if (key == "btl_tcp_if_include" && !absl::StrContains(value, ',')) {
    line.Flag("--net", value);
  } else if (key == "odls_base_sigkill_timeout") {
    line.Flag("--grace", value);
  }
  return absl::OkStatus();
}

absl::Status Environment(LineBuilder& line, const cli::Surroundings& surroundings,
                         std::vector<std::string>& shared) {
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
    absl::Status status = TakeParameter(each->values[0], each->values[1], line);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

void OutputFolder(absl::string_view dir, LineBuilder& line) {
  line.Flag("--output", absl::StrCat(dir, "/1/rank.%R/%s"));
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
        line.Flag("--output", absl::StrCat(parts.second, ".%r"));
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

absl::StatusOr<Line> TranslateProgram(const std::vector<std::string>& args, bool first,
                                      const cli::Surroundings& surroundings,
                                      std::vector<std::string>& shared, Translation& out) {
  absl::StatusOr<FaceWords> words = SplitFace(MpirunFlags(), {.one_dash = true}, args);
  if (!words.ok()) return words.status();
  LineBuilder line(out);
  absl::Status status = line.Take(*words);
  if (status.ok()) status = MapBy(line);
  if (status.ok()) status = BindTo(line);
  if (status.ok()) status = Environment(line, surroundings, shared);
  if (!status.ok()) return status;
  out.ppn_wraps = out.ppn_wraps || line.Has("ppn");  // Hydra's
  if (line.line().command.empty()) return absl::InvalidArgumentError("no program to run");
  if (const std::string dir = line.Value("output-filename"); !dir.empty()) OutputFolder(dir, line);
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
    absl::StatusOr<Line> line =
        TranslateProgram({begin, end}, out.programs.empty(), surroundings, shared, out);
    if (!line.ok()) return line.status();
    out.programs.push_back(*std::move(line));
    if (end == args.end()) break;
    begin = end + 1;
  }
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
