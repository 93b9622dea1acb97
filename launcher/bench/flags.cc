// SPDX-License-Identifier: Apache-2.0
#include "launcher/bench/flags.h"

#include <algorithm>
#include <initializer_list>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/text.h"
#include "launcher/cli/cli11.h"
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

absl::Status Choose(View value, std::initializer_list<View> known, std::string& out) {
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
          absl::Status (*set)(View value, Options& out)) {
  return {{names, group, value, help, nullptr}, set};
}

std::vector<Flag> AllreduceFlags() {
  constexpr View kGroup = "What";
  return {
      Make("--sizes", kGroup, "BYTES,...",
           "sizes of the data of one rank, with K, M or G; default:\n"
           "4 to 1G by powers of two and 102228384 (ResNet-50)",
           SetSizes),
      Make("--collective", kGroup, "NAME",
           "allreduce (default), broadcast, allgather,\n"
           "reduce_scatter, alltoall or reduce",
           [](View v, Options& o) {
             return Choose(
                 v, {"allreduce", "broadcast", "allgather", "reduce_scatter", "alltoall", "reduce"},
                 o.collective);
           }),
      Make("--type", kGroup, "TYPE",
           "int32, int64, float16, bfloat16, float32 (default) or\n"
           "float64",
           [](View v, Options& o) {
             return Choose(v, {"int32", "int64", "float16", "bfloat16", "float32", "float64"},
                           o.type);
           }),
      Make("--op", kGroup, "OP", "sum (default), avg, min, max or prod",
           [](View v, Options& o) {
             return Choose(v, {"sum", "avg", "min", "max", "prod"}, o.op);
           }),
      Make("--iterations", kGroup, "N", "timed calls at each size; default: as many as are needed",
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
           "do not say",
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
                       "also draw the result: a page of its own for a browser,\n"
                       "FILE.html or FILE.svg",
                       SetPlot));
  flags.push_back(Make("--worker", kGroup, "PATH",
                       "dtrain-allreduce on the hosts; default: as beside dtrain\n"
                       "on this machine",
                       SetWorker));
  flags.push_back(
      Make("--help,-h", kGroup, "", "print this", [](View, Options&) { return absl::OkStatus(); }));
  return flags;
}

std::vector<cli::Flag> ShownFlags(const std::vector<Flag>& flags) {
  std::vector<cli::Flag> shown;
  for (const Flag& flag : flags) shown.push_back(flag.shown);
  return shown;
}

std::string GeneralHelp() {
  return R"(Measures what a job's communication costs, and what more ranks bring.

Usage: dtrain bench TOOL [FLAGS] [FLAGS OF dtrain launch]

Tools:
  allreduce   time and bandwidth of collectives by size
  p2p         latency and bandwidth of every pair of nodes
  scaling     one command at several numbers of ranks

Examples:
  dtrain bench allreduce -np -2
  dtrain bench allreduce --hostfile hosts.txt --plot bandwidth.html
  dtrain bench p2p --hostfile hosts.txt
  dtrain bench scaling --np -1,-2,4,8 -H a:4,b:4 -- python train.py

dtrain bench TOOL --help tells the flags of a tool.
)";
}

std::string ToolHelp(Tool tool) {
  View head;
  switch (tool) {
    case Tool::kAllreduce:
      head = R"(Times a collective of libdtrain over a range of sizes, and checks its results.

Usage: dtrain bench allreduce [FLAGS] [FLAGS OF dtrain launch]
)";
      break;
    case Tool::kPairs:
      head =
          R"(Measures latency and bandwidth between every two nodes, one pair at a time. Marks the pairs
with less than half of the median bandwidth.

Usage: dtrain bench p2p [FLAGS] [FLAGS OF dtrain launch]

One rank runs on each host, unless --np, --ppn, --map-by or --rankfile say otherwise.
)";
      break;
    case Tool::kScaling:
      head =
          R"(Runs a command at several numbers of ranks, and tells what more ranks brought and what they
spent their time on. Steps are told from lines that the workers print:

  dtrain-step {"seconds": 0.118, "compute": 0.097, "allreduce": 0.015, "optimiser": 0.006,
               "samples": 64, "bytes": 102228384}

on one line each; all but "seconds" may be left out.

Usage: dtrain bench scaling --np N,... [FLAGS] [FLAGS OF dtrain launch] -- COMMAND...
)";
      break;
  }
  return absl::StrCat(head, cli::FormatFlags(ShownFlags(FlagsOf(tool))), R"(
All flags of dtrain launch say where and how the ranks run; see dtrain launch --help. The exit code
is that of the launch that failed; 0 when all went well.
)");
}

}  // namespace dtrain::bench
