// SPDX-License-Identifier: Apache-2.0
// DeepSpeed's launcher (deepspeed/launcher/runner.py).
#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/text.h"
#include "launcher/faces/face.h"

namespace dtrain::faces {
namespace {

using Becomes = FaceFlag::Becomes;

constexpr absl::string_view kLauncher = "hosts are reached by ssh, or by --rsh";
constexpr absl::string_view kElastic = "a dtrain job cannot change its ranks";
// Where DeepSpeed looks when it is given none.
constexpr absl::string_view kHostfile = "/job/hostfile";

const std::vector<FaceFlag>& DeepspeedFlags() {
  static const auto* flags = new std::vector<FaceFlag>{
      {"--hostfile,-H", "FILE", Becomes::kOwn, "",
       "hosts and slots; without it /job/hostfile, else this machine"},
      {"--include,-i", "HOST:0,1@HOST", Becomes::kFlag, "--include"},
      {"--exclude,-e", "HOST:0,1@HOST", Becomes::kFlag, "--exclude"},
      {"--num-nodes", "N", Becomes::kOwn, "", "the first N hosts"},
      {"--num-gpus,--num-accelerators", "N", Becomes::kOwn, "", "ranks on each host"},
      {"--master-addr", "ADDRESS", Becomes::kIgnored, kRendezvous},
      {"--master-port", "PORT", Becomes::kIgnored, kRendezvous},
      {"--node-rank", "N", Becomes::kOwn, "", "0 only: one command starts all nodes"},
      {"--no-ssh", "", Becomes::kIgnored, "one command starts all nodes"},
      {"--no-ssh-check,--force-multi", "", Becomes::kIgnored, ""},
      {"--launcher", "NAME", Becomes::kIgnored, kLauncher},
      {"--launcher-args", "ARGS", Becomes::kIgnored, kLauncher},
      {"--ssh-port", "PORT", Becomes::kFlag, "--ssh-port"},
      {"--module", "", Becomes::kOwn, "", "the script is a module: python3 -u -m MODULE"},
      {"--no-python", "", Becomes::kOwn, "", "the script is a program: run as it is"},
      {"--no-local-rank", "", Becomes::kOwn, "", "do not add --local_rank=N to the arguments"},
      {"--save-pid", "", Becomes::kIgnored, "dtrain ps and dtrain stop find the job"},
      {"--enable-each-rank-log", "DIR", Becomes::kFlag, "--log-dir"},
      {"--autotuning", "HOW", Becomes::kRejected, "tune with DeepSpeed's own launcher"},
      {"--elastic-training", "", Becomes::kRejected, kElastic},
      {"--min-elastic-nodes,--max-elastic-nodes", "N", Becomes::kRejected, kElastic},
      {"--bind-cores-to-rank", "", Becomes::kFlag, "--bind core"},
      {"--bind-core-list", "LIST", Becomes::kIgnored,
       "dtrain shares out the cores that its own process may use; see taskset"},
      {"--venv-script", "FILE", Becomes::kRejected, "activate it before the launch"},
  };
  return *flags;
}

absl::Status ChooseHosts(LineBuilder& line, const cli::Surroundings& surroundings,
                         Translation& out) {
  std::string file = line.Value("hostfile", kHostfile);
  // Without /job/hostfile DeepSpeed runs on this machine. Without one that is named it does, too,
  // but nobody means that, unless the name is "none".
  const bool exists = !absl::IsNotFound(surroundings.read(file).status());
  if (!exists && line.Has("hostfile") && file != "none") {
    return absl::InvalidArgumentError(absl::StrCat("--hostfile: there is no file ", Escape(file),
                                                   "; without --hostfile all ranks run here"));
  }
  // --hosts on this very line counts more than a file that nobody has named.
  const bool listed = line.HasOurs("hosts");
  if (exists && (line.Has("hostfile") || !listed)) {
    line.Flag("--hostfile", file);
  } else if (!listed && !line.HasOurs("agent")) {
    out.this_machine = true;
  }
  const bool chosen = line.Has("include") || line.Has("exclude");
  for (const absl::string_view name : {"num-nodes", "num-gpus"}) {
    if (!line.Has(name) || line.Value(name) == "-1") continue;
    if (chosen) {
      return absl::InvalidArgumentError(
          absl::StrCat(line.Find(name)->spelled,
                       " contradicts --include and --exclude, which choose hosts and GPUs"));
    }
    if (name == "num-gpus") {
      line.Flag("--ppn", line.Value(name));
    } else if (line.Value(name) != "1" || !out.this_machine) {
      line.Flag("--nnodes", line.Value(name));
    }
  }
  if (line.Value("node-rank", "-1") != "-1" && line.Value("node-rank") != "0") {
    return absl::InvalidArgumentError(
        absl::StrCat("--node_rank ", Escape(line.Value("node-rank"), 20),
                     ": dtrain starts all nodes of a job from one command; run this line once, "
                     "without --node_rank and --no_ssh"));
  }
  return absl::OkStatus();
}

// KEY=VALUE lines of .deepspeed_env in the home directory and here, the later on top.
absl::Status ReadVariables(LineBuilder& line, const cli::Surroundings& surroundings) {
  std::string name = Variable(surroundings, "DS_ENV_FILE");
  if (name.empty()) name = ".deepspeed_env";
  std::vector<std::string> files;
  for (const std::string& folder :
       {Variable(surroundings, "HOME"), surroundings.working_directory}) {
    if (!folder.empty()) files.push_back(absl::StrCat(folder, "/", name));
  }
  if (absl::StartsWith(name, "/")) files = {name};
  if (files.size() == 2 && files[0] == files[1]) files.pop_back();
  for (const std::string& file : files) {
    const absl::StatusOr<std::string> text = surroundings.read(file);
    if (absl::IsNotFound(text.status())) continue;
    if (!text.ok()) return text.status();
    size_t number = 0;
    for (absl::string_view row : absl::StrSplit(*text, '\n')) {
      ++number;
      row = absl::StripSuffix(row, "\r");
      if (absl::StripAsciiWhitespace(row).empty() || row[0] == '#') continue;
      const size_t equals = row.find('=');
      if (equals == absl::string_view::npos || equals == 0) {
        // Not the line: it may be a secret.
        return absl::InvalidArgumentError(
            absl::StrCat(Escape(file), ":", number, ": this line is not NAME=VALUE"));
      }
      line.Export(row.substr(0, equals), row.substr(equals + 1));
    }
  }
  return absl::OkStatus();
}

// DeepSpeed sets OMP_NUM_THREADS to the cores that it binds a rank to.
void NoteThreads(const cli::Surroundings& surroundings, LineBuilder& line) {
  const std::vector<std::string>& flags = line.line().flags;
  const bool has_threads =
      IsSet(surroundings, "OMP_NUM_THREADS") ||
      std::any_of(flags.begin(), flags.end(), [](const std::string& each) {
        return absl::StartsWith(absl::StripPrefix(each, "--export="), "OMP_NUM_THREADS=");
      });
  if (has_threads || !line.Has("bind-cores-to-rank")) return;
  line.Note("each rank has one thread; --export OMP_NUM_THREADS=N gives it more");
}

absl::StatusOr<Translation> TranslateDeepspeed(const std::vector<std::string>& args,
                                               const cli::Surroundings& surroundings) {
  absl::StatusOr<FaceWords> words = SplitFace(DeepspeedFlags(), kDeepspeed.spelling, args);
  if (!words.ok()) return words.status();
  Translation out;
  LineBuilder line(out);
  absl::Status status = line.Take(*words);
  if (status.ok()) status = ChooseHosts(line, surroundings, out);
  // Scripts import what lies beside them.
  if (status.ok() && !surroundings.working_directory.empty()) {
    const std::string path = Variable(surroundings, "PYTHONPATH");
    line.Export("PYTHONPATH",
                absl::StrCat(surroundings.working_directory, path.empty() ? "" : ":", path));
  }
  if (status.ok()) status = ReadVariables(line, surroundings);
  if (!status.ok()) return status;
  NoteThreads(surroundings, line);
  std::vector<std::string> script = line.line().command;
  if (!script.empty() && !line.Has("no-local-rank")) {
    script.insert(script.begin() + 1, "--local_rank=${local_rank}");
  }
  auto command = PythonCommand(script, line.Has("module"), line.Has("no-python"), surroundings);
  if (!command.ok()) return command.status();
  line.line().command = WithLocalRank(*command, "${local_rank}");
  out.programs.push_back(std::move(line.line()));
  return out;
}

}  // namespace

const Face kDeepspeed = {
    .name = "deepspeed",
    .usage = "deepspeed [FLAGS] SCRIPT [ARGUMENTS...]",
    .text = "Starts a job with the command line of DeepSpeed's launcher.\n",
    .flags = DeepspeedFlags,
    .spelling = {.one_dash = false, .abbreviations = true},
    .translate = TranslateDeepspeed,
};

}  // namespace dtrain::faces
