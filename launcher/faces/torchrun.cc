// SPDX-License-Identifier: Apache-2.0
// torchrun, as of PyTorch 1.13 to 2.9 (torch/distributed/run.py).
#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/base/text.h"
#include "launcher/faces/face.h"
#include "launcher/hosts/hostfile.h"

namespace dtrain::faces {
namespace {

using Becomes = FaceFlag::Becomes;

constexpr absl::string_view kPlugin = "it names a plug-in of torchrun's";

const std::vector<FaceFlag>& TorchrunFlags() {
  static const auto* flags = new std::vector<FaceFlag>{
      {"--nnodes", "N|MIN:MAX", Becomes::kOwn, "",
       "number of nodes, the first of the host list; MIN:MAX: those that can be reached, up to "
       "MAX"},
      {"--nproc-per-node", "N|gpu|cpu|auto", Becomes::kFlag, "--ppn",
       "ranks per node, default 1; counted on each node"},
      {"--standalone", "", Becomes::kOwn, "", "this machine only"},
      {"--module,-m", "", Becomes::kOwn, "", "the script is a module: python3 -u -m MODULE"},
      {"--no-python", "", Becomes::kOwn, "", "the script is a program: run as it is"},
      {"--run-path", "", Becomes::kOwn, "", "run as a script"},
      {"--use-env", "", Becomes::kIgnored, ""},  // of torch.distributed.launch
      {"--role", "NAME", Becomes::kVariable, "ROLE_NAME"},
      {"--rdzv-id", "ID", Becomes::kVariable, "TORCHELASTIC_RUN_ID"},
      {"--rdzv-backend", "NAME", Becomes::kIgnored, kRendezvous},
      {"--rdzv-endpoint", "HOST:PORT", Becomes::kIgnored, kRendezvous},
      {"--rdzv-conf", "K=V,...", Becomes::kOwn, "",
       "join_timeout is --start-timeout; the others are ignored"},
      {"--master-addr", "ADDRESS", Becomes::kIgnored, kRendezvous},
      {"--master-port", "PORT", Becomes::kIgnored, kRendezvous},
      {"--local-addr", "ADDRESS", Becomes::kIgnored, kRendezvous},
      {"--node-rank", "N", Becomes::kOwn, "", "0 only: one command starts all nodes"},
      {"--max-restarts", "N", Becomes::kFlag, "--max-restarts"},
      {"--monitor-interval", "S", Becomes::kIgnored, ""},
      {"--start-method", "HOW", Becomes::kIgnored, ""},
      {"--event-log-handler", "NAME", Becomes::kIgnored, kPlugin},
      {"--logs-specs", "NAME", Becomes::kRejected, kPlugin},
      {"--log-dir", "DIR", Becomes::kOwn, "",
       "files DIR/JOB/attempt_N/RANK/{stdout,stderr}.log, on this machine"},
      {"--redirects,-r", "WHAT", Becomes::kOwn, "",
       "output that goes to files only: 0 none, 1 stdout, 2 stderr, 3 both, or 0:3,1:2"},
      {"--tee,-t", "WHAT", Becomes::kOwn, "",
       "output that goes to files and, tagged, to the terminal"},
      {"--local-ranks-filter", "N,N", Becomes::kOwn, "",
       "local ranks whose output the terminal gets"},
      {"--numa-binding", "HOW", Becomes::kOwn, "",
       "node or socket: --bind numa; exclusive or core-complex: --bind core"},
      {"--signals-to-handle", "LIST", Becomes::kIgnored, ""},
      {"--shutdown-timeout", "S", Becomes::kFlag, "--grace"},
      {"--virtual-local-rank", "", Becomes::kOwn, "",
       "LOCAL_RANK is 0 everywhere, and each rank sees its own GPU only"},
  };
  return *flags;
}

// PET_NPROC_PER_NODE=8, where the command line does not say it.
void AddVariables(const cli::Surroundings& surroundings, FaceWords& words) {
  std::vector<Mention> given;
  for (const FaceFlag& flag : TorchrunFlags()) {
    const std::string name(NameOf(flag));
    const std::string variable =
        absl::StrCat("PET_", absl::AsciiStrToUpper(absl::StrReplaceAll(name, {{"-", "_"}})));
    const std::string value = Variable(surroundings, variable);
    const bool said = std::any_of(words.mentions.begin(), words.mentions.end(),
                                  [&](const Mention& each) { return each.flag == &flag; });
    if (value.empty() || said) continue;
    if (flag.values.empty() && value == "0") continue;
    Mention mention{&flag, variable, {}};
    if (!flag.values.empty()) mention.values.push_back(value);
    given.push_back(std::move(mention));
  }
  words.mentions.insert(words.mentions.begin(), given.begin(), given.end());
}

absl::Status ChooseTorchNodes(LineBuilder& line, Translation& out) {
  const bool given = line.HasOurs("hostfile") || line.HasOurs("hosts");
  const std::string text = line.Value("nnodes");
  if (text.empty()) {
    // As torchrun has it, unless hosts are named on this very line.
    out.this_machine = !given;
    return absl::OkStatus();
  }
  const std::vector<std::string> ends = absl::StrSplit(text, ':');
  uint32_t fewest = 0, most = 0;
  if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &fewest) ||
      !absl::SimpleAtoi(ends.back(), &most) || fewest == 0 || most < fewest ||
      most > hosts::kMaxHosts) {
    return BadValue("--nnodes", text, "a number of nodes or MIN:MAX");
  }
  if (most == 1 && !given) {
    out.this_machine = true;
    return absl::OkStatus();
  }
  out.needs_hosts = fewest > 1;
  out.fewest_nodes = fewest;
  out.most_nodes = most;
  return absl::OkStatus();
}

absl::Status CheckPlace(LineBuilder& line, Translation& out) {
  if (line.Has("standalone")) {
    if (out.most_nodes.value_or(1) > 1) {
      return absl::InvalidArgumentError("--standalone is one node; leave out --nnodes");
    }
    out.this_machine = true;
    out.needs_hosts = false;
    out.most_nodes.reset();
    out.fewest_nodes.reset();
  }
  uint32_t rank = 0;
  const std::string node_rank = line.Value("node-rank", "0");
  if (!absl::SimpleAtoi(node_rank, &rank)) return BadValue("--node-rank", node_rank, "a number");
  if (rank > 0) {
    const std::string& said = line.Find("node-rank")->spelled;  // or PET_NODE_RANK
    return absl::InvalidArgumentError(
        absl::StrCat(said, " ", rank,
                     ": dtrain starts all nodes of a job from one command; run this line once, ",
                     "without ", said, ", and with --hostfile or --hosts"));
  }
  return absl::OkStatus();
}

absl::Status TakeRest(LineBuilder& line, Translation& out) {
  const std::string conf = line.Value("rdzv-conf");
  for (absl::string_view pair : absl::StrSplit(conf, ',', absl::SkipWhitespace())) {
    const std::vector<std::string> both = absl::StrSplit(pair, absl::MaxSplits('=', 1));
    if (both.size() != 2) return BadValue("--rdzv-conf", conf, "KEY=VALUE,...");
    if (absl::StripAsciiWhitespace(both[0]) == "join_timeout") {
      line.Flag("--start-timeout", absl::StripAsciiWhitespace(both[1]));
    }
  }
  if (const std::string how = line.Value("numa-binding"); !how.empty()) {
    const bool numa = how == "node" || how == "socket";
    if (!numa && how != "exclusive" && how != "core-complex") {
      return BadValue("--numa-binding", how, "node, socket, exclusive or core-complex");
    }
    line.Flag("--bind", numa ? "numa" : "core");
  }
  if (line.Has("virtual-local-rank")) {
    line.Flag("--gpu-bind", "rank");
    line.Export("LOCAL_RANK", "0");
  }
  if (!line.Has("nproc-per-node")) line.Flag("--ppn", "1");
  out.cores_are_no_limit = true;
  return absl::OkStatus();
}

// Bits 1 and 2 are stdout and stderr.
struct Redirection {
  uint32_t of_all = 0;
  std::map<uint32_t, uint32_t> of_rank;  // by local rank

  uint32_t Of(uint32_t local_rank) const {
    const auto own = of_rank.find(local_rank);
    return own == of_rank.end() ? of_all : own->second;
  }
  bool any() const { return of_all != 0 || !of_rank.empty(); }
};

// "3" or "0:3,1:2"
absl::StatusOr<Redirection> ParseRedirection(absl::string_view flag, const std::string& text) {
  Redirection out;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::vector<std::string> both = absl::StrSplit(part, ':');
    uint32_t rank = 0, bits = 0;
    const bool fits =
        absl::SimpleAtoi(both.back(), &bits) && bits <= 3 &&
        (both.size() == 1 ? text == part : both.size() == 2 && absl::SimpleAtoi(both[0], &rank));
    if (!fits) return BadValue(flag, text, "0, 1, 2 or 3, or LOCAL_RANK:0 to 3 with commas");
    (both.size() == 1 ? out.of_all : out.of_rank[rank]) = bits;
  }
  return out;
}

output::Streams StreamsOf(uint32_t bits) {
  constexpr output::Streams kStreams[] = {output::Streams::kNone, output::Streams::kStdout,
                                          output::Streams::kStderr, output::Streams::kBoth};
  return kStreams[bits & 3];
}

absl::Status TakeOutput(LineBuilder& line, Translation& out) {
  const auto redirects = ParseRedirection("--redirects", line.Value("redirects", "0"));
  if (!redirects.ok()) return redirects.status();
  const auto tee = ParseRedirection("--tee", line.Value("tee", "0"));
  if (!tee.ok()) return tee.status();
  const auto shown = [&](uint32_t rank) {
    return StreamsOf((3 & ~redirects->Of(rank)) | tee->Of(rank));
  };
  out.shown.streams = StreamsOf((3 & ~redirects->of_all) | tee->of_all);
  for (const auto& ranks : {redirects->of_rank, tee->of_rank}) {
    for (const auto& [rank, bits] : ranks) out.shown.streams_of[rank] = shown(rank);
  }
  const std::string filter = line.Value("local-ranks-filter");
  for (const absl::string_view text : absl::StrSplit(filter, ',', absl::SkipEmpty())) {
    uint32_t rank = 0;
    if (!absl::SimpleAtoi(text, &rank)) {
      return BadValue("--local-ranks-filter", filter, "a list of local ranks");
    }
    if (!out.shown.local_ranks) out.shown.local_ranks.emplace();
    out.shown.local_ranks->insert(rank);
  }
  const std::string dir = line.Value("log-dir");
  const bool files = line.HasOurs("output");
  if (redirects->any() && dir.empty() && !files) {
    return absl::InvalidArgumentError("--redirects: give --log-dir DIR, where the output goes");
  }
  if (!dir.empty()) {
    line.Flag("--output",
              absl::StrCat(absl::StrReplaceAll(dir, {{"%", "%%"}}), "/%j/attempt_%a/%r/%s.log"));
  }
  if (!line.HasOurs("tag-output")) line.Flag("--tag-output", tee->any() ? "rank" : "none");
  return absl::OkStatus();
}

absl::StatusOr<Translation> TranslateTorchrun(const std::vector<std::string>& args,
                                              const cli::Surroundings& surroundings) {
  absl::StatusOr<FaceWords> words = SplitFace(TorchrunFlags(), kTorchrun.spelling, args);
  if (!words.ok()) return words.status();
  AddVariables(surroundings, *words);
  Translation out;
  LineBuilder line(out);
  absl::Status status = line.Take(*words);
  if (status.ok()) status = ChooseTorchNodes(line, out);
  if (status.ok()) status = CheckPlace(line, out);
  if (status.ok()) status = TakeRest(line, out);
  if (status.ok()) status = TakeOutput(line, out);
  if (!status.ok()) return status;
  auto command =
      PythonCommand(line.line().command, line.Has("module"), line.Has("no-python"), surroundings);
  if (!command.ok()) return command.status();
  line.line().command = WithLocalRank(*command, "${local_rank}");
  out.programs.push_back(std::move(line.line()));
  return out;
}

}  // namespace

const Face kTorchrun = {
    .name = "torchrun",
    .usage = "torchrun [FLAGS] [--] SCRIPT [ARGUMENTS...]",
    .text = "Starts a job as torchrun would, on all its nodes, from one command.\n",
    .flags = TorchrunFlags,
    .spelling = {.one_dash = false, .abbreviations = true},
    .translate = TranslateTorchrun,
};

}  // namespace dtrain::faces
