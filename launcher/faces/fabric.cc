// SPDX-License-Identifier: Apache-2.0
// fabric run, as of Lightning 2.6 (src/lightning/fabric/cli.py). The script gets the variables that
// it would set and is started as each rank.
#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/text.h"
#include "launcher/faces/face.h"
#include "launcher/hosts/hostfile.h"

namespace dtrain::faces {
namespace {

using Becomes = FaceFlag::Becomes;

const std::vector<FaceFlag>& FabricFlags() {
  static const auto* flags = new std::vector<FaceFlag>{
      {"--accelerator", "cpu|gpu|cuda|auto", Becomes::kOwn, "",
       "sets LT_ACCELERATOR; ranks on cpu hold no GPUs"},
      {"--strategy", "NAME", Becomes::kOwn, "", "sets LT_STRATEGY; dp is one rank per node"},
      {"--devices", "N|I,J|-1|auto", Becomes::kOwn, "",
       "ranks per node, default 1; -1: one for each GPU; I,J: one for each of these GPUs"},
      {"--num-nodes", "N", Becomes::kOwn, "", "number of nodes, the first of the host list"},
      {"--node-rank", "N", Becomes::kOwn, "", "0 only: one command starts all nodes"},
      {"--main-address", "ADDRESS", Becomes::kIgnored, kRendezvous},
      {"--main-port", "PORT", Becomes::kIgnored, kRendezvous},
      {"--precision", "NAME", Becomes::kVariable, "LT_PRECISION"},
  };
  return *flags;
}

absl::Status ChooseAccelerator(LineBuilder& line) {
  const std::string name = line.Value("accelerator");
  if (name.empty()) return absl::OkStatus();
  if (name == "tpu" || name == "mps") {
    return absl::InvalidArgumentError(
        absl::StrCat("--accelerator ", name,
                     " is not supported: dtrain starts jobs on CPUs and "
                     "NVIDIA GPUs"));
  }
  if (name != "cpu" && name != "gpu" && name != "cuda" && name != "auto") {
    return BadValue("--accelerator", name, "cpu, gpu, cuda or auto");
  }
  line.Export("LT_ACCELERATOR", name);
  return absl::OkStatus();
}

absl::Status ChooseFabricNodes(LineBuilder& line, Translation& out) {
  const bool given = line.HasOurs("hostfile") || line.HasOurs("hosts");
  if (given && !line.Has("num-nodes")) {
    return absl::InvalidArgumentError(
        "which hosts are named, but not how many: add --num-nodes N, which the script is told, "
        "too");
  }
  uint32_t nodes = 0, rank = 0;
  const std::string number = line.Value("num-nodes", "1");
  if (!absl::SimpleAtoi(number, &nodes) || nodes == 0 || nodes > hosts::kMaxHosts) {
    return BadValue("--num-nodes", number, "a number of nodes");
  }
  const std::string node_rank = line.Value("node-rank", "0");
  if (!absl::SimpleAtoi(node_rank, &rank)) return BadValue("--node-rank", node_rank, "a number");
  if (rank > 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--node-rank ", rank, ": dtrain starts all nodes of a job from one command; run this line ",
        "once, without --node-rank, and with --hostfile or --hosts"));
  }
  line.Export("LT_NUM_NODES", absl::StrCat(nodes));
  out.this_machine = nodes == 1 && !given;
  if (out.this_machine) return absl::OkStatus();
  out.needs_hosts = nodes > 1;
  out.fewest_nodes = out.most_nodes = nodes;
  return absl::OkStatus();
}

// The GPUs that "0,2" names; "1," is one.
absl::StatusOr<size_t> CountListed(const std::string& devices) {
  size_t count = 0;
  for (const absl::string_view text : absl::StrSplit(devices, ',', absl::SkipEmpty())) {
    uint32_t index = 0;
    if (!absl::SimpleAtoi(text, &index)) {
      return BadValue("--devices", devices, "a list of GPUs, as in 0,1");
    }
    ++count;
  }
  if (count == 0) return BadValue("--devices", devices, "a list of GPUs, as in 0,1");
  return count;
}

absl::Status ChooseRanks(LineBuilder& line, Translation& out) {
  const std::string devices = line.Value("devices", "1");
  const bool on_cpu = line.Value("accelerator") == "cpu";
  const bool is_list = devices.find(',') != std::string::npos;
  std::string ranks;
  if (is_list && !on_cpu) {
    const absl::StatusOr<size_t> listed = CountListed(devices);
    if (!listed.ok()) return listed.status();
    ranks = absl::StrCat(*listed);
  } else if (devices == "-1" && !on_cpu) {
    ranks = "gpu";
  } else {
    uint32_t number = devices == "auto" ? 1 : 0;
    if (number == 0 && (!absl::SimpleAtoi(devices, &number) || number == 0 ||
                        number > static_cast<uint32_t>(hosts::kMaxSlots))) {
      return BadValue("--devices", devices,
                      on_cpu ? "a number of ranks" : "a number, -1, auto or a list of GPUs");
    }
    ranks = absl::StrCat(number);
  }
  // The script picks them itself, from all there are.
  if ((on_cpu || is_list) && !line.HasOurs("gpu-bind")) line.Flag("--gpu-bind", "none");
  line.Flag("--ppn", line.Value("strategy") == "dp" ? "1" : ranks);
  line.Export("LT_DEVICES", devices);
  out.cores_are_no_limit = true;
  return absl::OkStatus();
}

absl::StatusOr<Translation> TranslateFabric(const std::vector<std::string>& args,
                                            const cli::Surroundings& surroundings) {
  if (args.empty() || args[0] != kFabric.verb) {
    return absl::InvalidArgumentError(absl::StrCat(
        args.empty() ? "a command is missing" : absl::StrCat("there is no ", Escape(args[0], 60)),
        ": dtrain has fabric run only; the rest is in Lightning's own program"));
  }
  absl::StatusOr<FaceWords> words = SplitFace(
      FabricFlags(), kFabric.spelling, std::vector<std::string>(args.begin() + 1, args.end()));
  if (!words.ok()) return words.status();
  Translation out;
  LineBuilder line(out);
  absl::Status status = line.Take(*words);
  line.Export("LT_CLI_USED", "1");
  if (line.Has("strategy")) line.Export("LT_STRATEGY", line.Value("strategy"));
  if (status.ok()) status = ChooseAccelerator(line);
  if (status.ok()) status = ChooseFabricNodes(line, out);
  if (status.ok()) status = ChooseRanks(line, out);
  if (!status.ok()) return status;
  if (!line.HasOurs("tag-output")) line.Flag("--tag-output", "none");
  auto command = PythonCommand(line.line().command, false, false, surroundings);
  if (!command.ok()) return command.status();
  line.line().command = *std::move(command);
  out.programs.push_back(std::move(line.line()));
  return out;
}

}  // namespace

const Face kFabric = {
    .name = "fabric",
    .usage = "fabric run [FLAGS] SCRIPT [FLAGS | ARGUMENTS...]",
    .text =
        "Starts a job as Lightning's fabric run would, on all its nodes, from one command. Its "
        "own\n"
        "flags may stand behind the script, too; what they do not include is the script's.\n",
    .flags = FabricFlags,
    .spelling = {.one_dash = false, .abbreviations = false, .behind_script = true},
    .verb = "run",
    .translate = TranslateFabric,
};

}  // namespace dtrain::faces
