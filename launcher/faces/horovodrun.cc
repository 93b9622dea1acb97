// SPDX-License-Identifier: Apache-2.0
// horovodrun, as of Horovod 0.28 (horovod/runner/launch.py).
#include <chrono>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/base/text.h"
#include "launcher/faces/face.h"
#include "launcher/faces/horovod_knobs.h"
#include "launcher/faces/yaml.h"

namespace dtrain::faces {
namespace {

using Becomes = FaceFlag::Becomes;

constexpr absl::string_view kNoMpirunArgs =
    "dtrain starts the ranks itself, without an mpirun to give them to; --bind and --map-by are "
    "dtrain's";

std::vector<FaceFlag> OwnFlags() {
  return {
      {"--num-proc,-np", "N", Becomes::kFlag, "--np", "number of ranks"},
      {"--hosts,-H", "LIST", Becomes::kFlag, "--hosts", "hosts and their slots: h1:4,h2:4"},
      {"--hostfile,-hostfile", "FILE", Becomes::kFlag, "--hostfile",
       "hosts and their slots, one per line: h1 slots=4"},
      {"--ssh-port,-p", "PORT", Becomes::kOwn, "", "dtrain launch --ssh-port"},
      {"--ssh-identity-file,-i", "FILE", Becomes::kOwn, "", "connects by ssh -i FILE"},
      {"--network-interfaces", "NAMES", Becomes::kOwn, "",
       "dtrain launch --net, of which it is the first; NCCL uses all: eth0,eth1"},
      {"--network-interface", "NAME", Becomes::kOwn, "", "the same; may be repeated"},
      {"--start-timeout", "S", Becomes::kOwn, "",
       "dtrain launch --start-timeout; else HOROVOD_START_TIMEOUT"},
      {"--output-filename", "DIR", Becomes::kOwn, "",
       "files DIR/rank.RANK/{stdout,stderr}, on this machine"},
      {"--prefix-output-with-timestamp,-prefix-timestamp", "", Becomes::kFlag, "--timestamps"},
      {"--verbose", "", Becomes::kFlag, "--verbose"},
      {"--config-file", "FILE", Becomes::kOwn, "", "values for the flags below, as YAML"},
      {"--gloo", "", Becomes::kOwn, "", "the default"},
      {"--mpi", "", Becomes::kOwn, "",
       "sets HOROVOD_CONTROLLER=mpi and HOROVOD_CPU_OPERATIONS=mpi"},
      {"--tcp", "", Becomes::kVariable, "NCCL_IB_DISABLE=1"},
      {"--disable-cache", "", Becomes::kIgnored, ""},
      {"--jsrun", "", Becomes::kRejected, kNoMpirunArgs},
      {"--mpi-args", "ARGS", Becomes::kRejected, kNoMpirunArgs},
      {"--binding-args", "ARGS", Becomes::kRejected, kNoMpirunArgs},
      {"--check-build,-cb", "", Becomes::kRejected,
       "it describes an installed Horovod; run Horovod's own horovodrun --check-build"},
      {"--version,-v", "", Becomes::kRejected,
       "dtrain version is dtrain's; Horovod's is horovod.__version__"},
      {"--host-discovery-script", "FILE", Becomes::kOwn, "",
       "makes the job elastic: dtrain launch --elastic horovod --discover FILE"},
      {"--min-np,--min-num-proc", "N", Becomes::kOwn, "",
       "makes the job elastic: dtrain launch --elastic horovod --min-np N"},
      {"--max-np,--max-num-proc", "N", Becomes::kOwn, "", "dtrain launch --max-np"},
      {"--slots-per-host", "N", Becomes::kOwn, "", "dtrain launch --slots-per-host"},
      {"--elastic-timeout", "S", Becomes::kOwn, "",
       "dtrain launch --join-timeout; else HOROVOD_ELASTIC_TIMEOUT"},
      {"--reset-limit", "N", Becomes::kOwn, "", "dtrain launch --reset-limit"},
      {"--blacklist-cooldown-range", "LOW HIGH", Becomes::kOwn, "",
       "dtrain launch --cool-down; default: never again"},
  };
}

const std::vector<FaceFlag>& HorovodrunFlags() {
  static const auto* flags = [] {
    auto* all = new std::vector<FaceFlag>(OwnFlags());
    for (const FaceFlag& flag : HorovodKnobFlags()) all->push_back(flag);
    return all;
  }();
  return *flags;
}

// The controller that the file names; empty: none.
absl::StatusOr<std::string> TakeFile(const std::string& path, const cli::Surroundings& surroundings,
                                     KnobValues& knobs, LineBuilder& line) {
  const absl::StatusOr<std::string> text = surroundings.read(path);
  if (!text.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--config-file: ", text.status().message()));
  }
  const absl::StatusOr<Value> file = ParseYaml(*text, path);
  if (!file.ok()) return file.status();
  std::vector<std::string> unknown;
  if (absl::Status status = TakeKnobs(*file, path, knobs, unknown); !status.ok()) return status;
  if (!unknown.empty()) {
    line.Note(absl::StrCat(Escape(path, 300), ": ", absl::StrJoin(unknown, ", "),
                           " ignored: horovodrun has no such keys"));
  }
  const auto controller = file->find("controller");
  if (controller == file->end() || controller->is_null()) return "";
  const std::string name = absl::AsciiStrToLower(PythonText(*controller).value_or("?"));
  if (name == "gloo" || name == "mpi") return name;
  return absl::InvalidArgumentError(absl::StrCat(Escape(path, 300), ": controller: \"",
                                                 Escape(name, 60), "\" is not gloo or mpi"));
}

absl::Status TakeHorovod(const FaceWords& words, const cli::Surroundings& surroundings,
                         LineBuilder& line) {
  if (line.Has("gloo") && line.Has("mpi")) {
    return absl::InvalidArgumentError("--gloo and --mpi contradict each other: leave one out");
  }
  KnobValues knobs;
  if (absl::Status status = TakeKnobs(words, knobs); !status.ok()) return status;
  std::string controller = line.Has("mpi") ? "mpi" : line.Has("gloo") ? "gloo" : "";
  if (const std::string path = line.Value("config-file"); !path.empty()) {
    const absl::StatusOr<std::string> named = TakeFile(path, surroundings, knobs, line);
    if (!named.ok()) return named.status();
    if (controller.empty()) controller = *named;
  }
  if (controller == "mpi") {
    line.Export("HOROVOD_CONTROLLER", "mpi");
    line.Export("HOROVOD_CPU_OPERATIONS", "mpi");
  }
  for (const auto& [name, value] : HorovodVariables(knobs)) line.Export(name, value);
  return absl::OkStatus();
}

absl::Status TakeHosts(LineBuilder& line, Translation& out) {
  if (!line.Has("num-proc") && !line.HasOurs("np")) {
    return absl::InvalidArgumentError("the number of ranks is missing: -np N");
  }
  out.this_machine =
      !line.Has("hosts") && !line.Has("hostfile") && !line.Has("host-discovery-script");
  const std::string port = line.Value("ssh-port");
  uint32_t number = 0;
  if (!port.empty() && (!absl::SimpleAtoi(port, &number) || number == 0 || number > 65535)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--ssh-port: \"", Escape(port, 60), "\" is not a port"));
  }
  // There is nobody to connect to, and dtrain launch would complain.
  if (out.this_machine) return absl::OkStatus();
  const std::string identity = line.Value("ssh-identity-file");
  if (identity.empty()) {
    if (!port.empty()) line.Flag("--ssh-port", port);
    return absl::OkStatus();
  }
  if (absl::StrContains(identity, '{')) {
    return absl::InvalidArgumentError(
        "--ssh-identity-file: braces in the name of the file are not supported; name the file in "
        "~/.ssh/config");
  }
  line.Flag("--rsh", absl::StrCat("ssh -o BatchMode=yes -i ", ShellWord(identity),
                                  port.empty() ? "" : " -p ", port, " {host}"));
  return absl::OkStatus();
}

constexpr absl::string_view kElasticValues[] = {"max-np", "slots-per-host", "reset-limit"};

// Numbers are looked at by dtrain launch.
absl::Status TakeElastic(const cli::Surroundings& surroundings, LineBuilder& line) {
  const std::string script = line.Value("host-discovery-script"), least = line.Value("min-np");
  if (script.empty() && least.empty()) {
    std::vector<absl::string_view> idle(std::begin(kElasticValues), std::end(kElasticValues));
    idle.insert(idle.end(), {"elastic-timeout", "blacklist-cooldown-range"});
    std::erase_if(idle, [&line](absl::string_view name) { return !line.Has(name); });
    if (idle.empty()) return absl::OkStatus();
    line.Note(absl::StrCat("--", absl::StrJoin(idle, ", --"),
                           " ignored: without --min-np or --host-discovery-script the job is not "
                           "elastic"));
    return absl::OkStatus();
  }
  if (line.Has("mpi")) {
    return absl::InvalidArgumentError("--mpi: elastic Horovod works with Gloo only; leave it out");
  }
  line.Flag("--elastic", "horovod");
  if (!script.empty()) line.Flag("--discover", script);
  if (!least.empty()) line.Flag("--min-np", least);
  for (const absl::string_view name : kElasticValues) {
    if (name == "slots-per-host" && script.empty()) continue;
    if (line.Has(name)) line.Flag(absl::StrCat("--", name), line.Value(name));
  }
  const std::string timeout =
      line.Value("elastic-timeout", Variable(surroundings, "HOROVOD_ELASTIC_TIMEOUT"));
  if (!timeout.empty()) line.Flag("--join-timeout", timeout);
  const Mention* range = line.Find("blacklist-cooldown-range");
  line.Flag("--cool-down",
            range == nullptr ? "never" : absl::StrCat(range->values[0], ":", range->values[1]));
  return absl::OkStatus();
}

void TakeInterfaces(LineBuilder& line) {
  std::vector<std::string> names;
  for (absl::string_view flag : {"network-interfaces", "network-interface"}) {
    for (const Mention* mention : line.All(flag)) {
      for (absl::string_view name : absl::StrSplit(mention->values[0], ',', absl::SkipEmpty())) {
        names.emplace_back(name);
      }
    }
  }
  if (names.empty()) return;
  line.Flag("--net", names[0]);
  if (names.size() > 1) line.Export("NCCL_SOCKET_IFNAME", absl::StrJoin(names, ","));
}

void TakeOutput(const cli::Surroundings& surroundings, LineBuilder& line) {
  const std::string timeout =
      line.Value("start-timeout", Variable(surroundings, "HOROVOD_START_TIMEOUT"));
  if (!timeout.empty()) line.Flag("--start-timeout", timeout);
  if (const std::string folder = line.Value("output-filename"); !folder.empty()) {
    // A '%' of the folder's own is doubled in a pattern.
    const std::string plain = absl::StrReplaceAll(folder, {{"%", "%%"}});
    line.Flag("--output", absl::StrCat(plain, "/rank.%R/%s"));
  }
}

absl::StatusOr<Translation> TranslateHorovodrun(const std::vector<std::string>& args,
                                                const cli::Surroundings& surroundings) {
  absl::StatusOr<FaceWords> words = SplitFace(HorovodrunFlags(), kHorovodrun.spelling, args);
  if (!words.ok()) return words.status();
  Translation out;
  LineBuilder line(out);
  absl::Status status = line.Take(*words);
  if (status.ok()) status = TakeHosts(line, out);
  if (status.ok()) status = TakeHorovod(*words, surroundings, line);
  if (status.ok()) status = TakeElastic(surroundings, line);
  if (!status.ok()) return status;
  TakeInterfaces(line);
  TakeOutput(surroundings, line);
  if (line.line().command.empty()) return absl::InvalidArgumentError("no command to run");
  out.cores_are_no_limit = true;
  out.grace = std::chrono::seconds(5);  // GRACEFUL_TERMINATION_TIME_S
  out.programs.push_back(std::move(line.line()));
  return out;
}

}  // namespace

const Face kHorovodrun = {
    .name = "horovodrun",
    .usage = "horovodrun -np N [FLAGS] COMMAND [ARGUMENTS...]",
    .text = "Starts a job as horovodrun would, with Horovod on Gloo unless --mpi is given.\n",
    .flags = HorovodrunFlags,
    .spelling = {.one_dash = false, .abbreviations = true},
    .translate = TranslateHorovodrun,
};

}  // namespace dtrain::faces
