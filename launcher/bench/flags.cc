// SPDX-License-Identifier: Apache-2.0
#include "launcher/bench/flags.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "common/base/text.h"
#include "launcher/cli/values.h"
#include "launcher/hosts/rankfile.h"

namespace dtrain::bench {
namespace {

using View = absl::string_view;

absl::Status Bad(View value, View what) {
  return absl::InvalidArgumentError(absl::StrCat("\"", Escape(value, 60), "\" is not ", what));
}

absl::Status SetSizes(View value, Options& out) {
  out.sizes.clear();
  for (View part : absl::StrSplit(value, ',')) {
    const absl::StatusOr<uint64_t> bytes = cli::ParseSize(part);
    if (!bytes.ok()) return bytes.status();
    if (*bytes == 0 || *bytes > uint64_t{1} << 40) return Bad(part, "from 1 byte to 1T");
    out.sizes.push_back(*bytes);
  }
  return absl::OkStatus();
}

constexpr View kCollectives[] = {"allreduce",      "broadcast", "allgather",
                                 "reduce_scatter", "alltoall",  "reduce"};
constexpr View kTypes[] = {"int32", "int64", "float16", "bfloat16", "float32", "float64"};
constexpr View kOperations[] = {"sum", "avg", "min", "max", "prod"};

// What bench says itself to launch, or reads from it.
constexpr View kTaken[] = {"dry-run",    "result-json", "tag-output", "timestamps",
                           "show-ranks", "module",      "stdin"};

absl::Status Choose(View value, absl::Span<const View> known, std::string& out) {
  if (std::find(known.begin(), known.end(), value) == known.end()) {
    return Bad(value, absl::StrCat("one of ", absl::StrJoin(known, ", ")));
  }
  out.assign(value.data(), value.size());
  return absl::OkStatus();
}

absl::Status SetCounts(View value, Options& out) {
  out.counts.clear();
  for (View part : absl::StrSplit(value, ',')) {
    const bool local = absl::StartsWith(part, "-");
    const absl::StatusOr<uint64_t> ranks =
        cli::ParseNumber(part.substr(local ? 1 : 0), 1, hosts::kMaxRanks);
    if (!ranks.ok()) return Bad(part, "a number of ranks, with a minus for this machine");
    out.counts.push_back({static_cast<uint32_t>(*ranks), local});
  }
  return absl::OkStatus();
}

absl::Status SetPlot(View value, Options& out) {
  if (!absl::EndsWith(value, ".svg") && !absl::EndsWith(value, ".html")) {
    return Bad(value, "a file that ends in .svg or .html");
  }
  out.plot.assign(value.data(), value.size());
  return absl::OkStatus();
}

absl::Status SetWorker(View value, Options& out) {
  if (value.empty()) return Bad(value, "a program");
  out.worker.assign(value.data(), value.size());
  return absl::OkStatus();
}

absl::Status SetJson(View value, Options& out) {
  out.json = true;
  if (value.empty()) return absl::OkStatus();
  const absl::StatusOr<bool> on = cli::ParseBool(value);
  if (!on.ok()) return on.status();
  out.json = *on;
  return absl::OkStatus();
}

absl::Status SetPipelined(View value, Options& out) {
  out.pipelined = true;
  if (value.empty()) return absl::OkStatus();
  const absl::StatusOr<bool> on = cli::ParseBool(value);
  if (!on.ok()) return on.status();
  out.pipelined = *on;
  return absl::OkStatus();
}

absl::Status SetIterations(View value, Options& out) {
  const absl::StatusOr<uint64_t> n = cli::ParseNumber(value, 1, 1'000'000);
  if (!n.ok()) return n.status();
  out.iterations = static_cast<uint32_t>(*n);
  return absl::OkStatus();
}

absl::Status SetBatch(View value, Options& out) {
  const absl::StatusOr<uint64_t> n = cli::ParseNumber(value, 1, 1'000'000'000);
  if (!n.ok()) return n.status();
  out.batch = static_cast<double>(*n);
  return absl::OkStatus();
}

Flag Make(View names, View group, View value, View help,
          absl::Status (*set)(View value, Options& out), absl::Span<const View> words = {}) {
  return {{names, group, value, help, nullptr, {words.begin(), words.end()}}, set};
}

std::vector<Flag> AllreduceFlags() {
  constexpr View kGroup = "What";
  return {
      Make("--sizes", kGroup, "BYTES,...",
           "sizes of the data of one rank, with K, M or G; default:\n"
           "4 to 1G by powers of two and 102228384 (ResNet-50)",
           SetSizes),
      Make(
          "--collective", kGroup, "NAME",
          "allreduce (default), broadcast, allgather,\n"
          "reduce_scatter, alltoall or reduce",
          [](View v, Options& o) { return Choose(v, kCollectives, o.collective); }, kCollectives),
      Make(
          "--type", kGroup, "TYPE",
          "int32, int64, float16, bfloat16, float32 (default) or\n"
          "float64",
          [](View v, Options& o) { return Choose(v, kTypes, o.type); }, kTypes),
      Make(
          "--op", kGroup, "OP", "sum (default), avg, min, max or prod",
          [](View v, Options& o) { return Choose(v, kOperations, o.op); }, kOperations),
      Make("--pipelined", kGroup, "",
           "time calls back to back, as nccl-tests does (default on\n"
           "GPUs); --pipelined=false: one call at a time, after a\n"
           "barrier (default on CPUs)",
           SetPipelined),
      Make("--iterations", kGroup, "N",
           "timed calls at each size; default: 20 when pipelined,\n"
           "else as many as are needed",
           SetIterations),
  };
}

std::vector<Flag> ScalingFlags() {
  constexpr View kGroup = "What";
  return {
      Make("--np,-n", kGroup, "N,...",
           "the numbers of ranks, one run each; negative: on this\n"
           "machine (--np -1,-2,4,8)",
           SetCounts),
      Make("--batch", kGroup, "N",
           "samples of one rank in one step, where the marked lines\n"
           "do not give it",
           SetBatch),
  };
}

}  // namespace

std::vector<Flag> FlagsOf(Tool tool) {
  constexpr View kGroup = "Result";
  std::vector<Flag> flags = tool == Tool::kScaling     ? ScalingFlags()
                            : tool == Tool::kAllreduce ? AllreduceFlags()
                                                       : std::vector<Flag>();
  flags.push_back(Make("--json", kGroup, "", "print JSON instead of a table", SetJson));
  flags.push_back(Make("--plot", kGroup, "FILE",
                       "also plot the result in one self-contained file,\n"
                       "FILE.html or FILE.svg",
                       SetPlot));
  flags.push_back(Make("--worker", kGroup, "PATH",
                       "dtrain-allreduce on the hosts; default: the path\n"
                       "of the one beside dtrain here",
                       SetWorker));
  flags.push_back(Make("--help,-h", kGroup, "", "print this help",
                       [](View, Options&) { return absl::OkStatus(); }));
  return flags;
}

std::vector<cli::Flag> ShownFlags(const std::vector<Flag>& flags) {
  std::vector<cli::Flag> shown;
  for (const Flag& flag : flags) shown.push_back(flag.shown);
  return shown;
}

bool IsTaken(View name) {
  return std::find(std::begin(kTaken), std::end(kTaken), name) != std::end(kTaken);
}

cli::Page GeneralPage() {
  cli::Page page;
  page.command = "dtrain bench";
  page.text = "Measures what a job's communication costs, and what more ranks gain.\n";
  page.usage = "dtrain bench TOOL [FLAGS] [FLAGS OF dtrain launch]";
  page.list_title = "Tools";
  page.list = {
      {"allreduce", "time and bandwidth of collectives by size"},
      {"p2p", "latency and bandwidth of every pair of nodes"},
      {"scaling", "one command at several numbers of ranks"},
  };
  page.examples = R"(  dtrain bench allreduce -np -2
  dtrain bench allreduce --hostfile hosts.txt --plot bandwidth.html
  dtrain bench p2p --hostfile hosts.txt
  dtrain bench scaling --np -1,-2,4,8 -H a:4,b:4 -- python train.py
)";
  page.notes = "dtrain bench TOOL --help lists the flags of a tool.\n";
  page.operand = cli::Page::Operand::kListed;
  return page;
}

cli::Page PageOf(Tool tool) {
  cli::Page page;
  switch (tool) {
    case Tool::kAllreduce:
      page.command = "dtrain bench allreduce";
      page.text =
          "Times a collective of libdtrain over a range of sizes, and checks its results.\n";
      break;
    case Tool::kPairs:
      page.command = "dtrain bench p2p";
      page.text =
          R"(Measures latency and bandwidth between every two nodes, one pair at a time. Marks the pairs
with less than half of the median bandwidth.
)";
      page.more =
          "One rank runs on each host, unless --np, --ppn, --map-by or --rankfile say otherwise.\n";
      break;
    case Tool::kScaling:
      page.command = "dtrain bench scaling";
      page.text =
          R"(Runs a command at several numbers of ranks, and shows what more ranks gain and where the time
goes. Steps are recognised by lines that the workers print:

  dtrain-step {"seconds": 0.118, "compute": 0.097, "allreduce": 0.015, "optimiser": 0.006,
               "samples": 64, "bytes": 102228384}

on one line each; all but "seconds" may be left out.
)";
      page.operand = cli::Page::Operand::kProgram;
      break;
  }
  page.usage =
      tool == Tool::kScaling
          ? "dtrain bench scaling --np N,... [FLAGS] [FLAGS OF dtrain launch] -- COMMAND..."
          : absl::StrCat(page.command, " [FLAGS] [FLAGS OF dtrain launch]");
  page.flags = ShownFlags(FlagsOf(tool));
  page.notes =
      R"(The flags of dtrain launch set where and how the ranks run; see dtrain launch --help. The exit code
is 0, or that of the launch that failed.
)";
  return page;
}

}  // namespace dtrain::bench
