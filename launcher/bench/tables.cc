// SPDX-License-Identifier: Apache-2.0
#include "launcher/bench/tables.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/text.h"

namespace dtrain::bench {
namespace {

uint64_t ElementSize(const std::string& type) {
  if (type == "float16" || type == "bfloat16") return 2;
  return type == "int64" || type == "float64" ? 8 : 4;
}

bool HasOperation(const std::string& collective) {
  return collective == "allreduce" || collective == "reduce" || collective == "reduce_scatter";
}

std::string MemoryText(const std::string& memory) {
  if (memory == "device") return " in GPU memory";
  if (memory == "shared") return " in memory shared within a node";
  return memory == "plain" ? " in host memory" : "";
}

std::string TimingCells(const Timing& timing) {
  return absl::StrFormat(" %12.2f %10.3f %10.3f %8d", timing.time_us, timing.algbw_gbs,
                         timing.busbw_gbs, timing.wrong);
}

std::string Milliseconds(double seconds) { return absl::StrFormat("%.2f", seconds * 1e3); }

std::string Share(double part, double whole) {
  return whole > 0 ? absl::StrFormat("%.0f%%", 100 * part / whole) : "-";
}

struct Column {
  const char* head;
  const char* unit;
  std::string (*text)(const ScalingRow&);
};

// Of phases: of a step, or of the whole run where no steps were told.
double Whole(const ScalingRow& row) { return row.step > 0 ? row.step : row.run; }

constexpr Column kColumns[] = {
    {"ranks", "",
     [](const ScalingRow& r) { return absl::StrCat(r.count.local ? "-" : "", r.count.ranks); }},
    {"start-up", "s", [](const ScalingRow& r) { return absl::StrFormat("%.2f", r.startup); }},
    {"run", "s", [](const ScalingRow& r) { return absl::StrFormat("%.2f", r.run); }},
    {"steps", "", [](const ScalingRow& r) { return absl::StrCat(r.steps); }},
    {"step", "ms", [](const ScalingRow& r) { return r.step > 0 ? Milliseconds(r.step) : "-"; }},
    {"samples", "/s",
     [](const ScalingRow& r) {
       return r.samples > 0 ? absl::StrFormat("%.1f", r.rate) : std::string("-");
     }},
    {"speed-up", "", [](const ScalingRow& r) { return absl::StrFormat("%.2f", r.speed_up); }},
    {"efficiency", "", [](const ScalingRow& r) { return Share(r.efficiency, 1); }},
    {"compute", "", [](const ScalingRow& r) { return Share(r.compute, Whole(r)); }},
    {"all-reduce", "", [](const ScalingRow& r) { return Share(r.allreduce, Whole(r)); }},
    {"optimiser", "", [](const ScalingRow& r) { return Share(r.optimiser, Whole(r)); }},
    {"all-reduce", "ms",
     [](const ScalingRow& r) { return r.allreduce > 0 ? Milliseconds(r.allreduce) : "-"; }},
    {"waiting", "ms",
     [](const ScalingRow& r) { return r.waiting > 0 ? Milliseconds(r.waiting) : "-"; }},
    {"predicted", "ms",
     [](const ScalingRow& r) {
       return r.predicted_allreduce ? Milliseconds(*r.predicted_allreduce) : "-";
     }},
};

std::string PaysLine(const ScalingRow& row) {
  if (!row.pays_from) return "";
  const std::string who =
      absl::StrCat(row.count.ranks, " ranks", row.count.local ? " on this machine" : "");
  if (std::isinf(*row.pays_from)) {
    return absl::StrCat("# ", who,
                        " do not pay: computing alone is slower by as much (no free core?)\n");
  }
  if (*row.pays_from < 1) return absl::StrCat("# ", who, " pay at every batch size\n");
  return absl::StrFormat("# %s pay from %.0f samples of one rank in one step (measured: %.0f)\n",
                         who, *row.pays_from, row.samples);
}

}  // namespace

std::string SizeTableHead(const SizeRow& first, const Options& options) {
  constexpr const char* kFour = " %12s %10s %10s %8s";
  std::string text = absl::StrCat(
      "# ", options.collective,
      HasOperation(options.collective) ? absl::StrCat(", ", options.op, " of ", options.type)
                                       : absl::StrCat(" of ", options.type),
      MemoryText(first.memory),
      first.pipelined ? ", pipelined: mean time of calls back to back, averaged over the ranks\n"
                      : ", one call at a time: medians of the slowest rank's time\n");
  if (first.pipelined) {
    absl::StrAppendFormat(&text, "# %43s %43s %43s\n", "", "out of place", "in place");
  }
  const std::string first_line = absl::StrFormat(kFour, "time", "algbw", "busbw", "#wrong");
  const std::string second_line = absl::StrFormat(kFour, "(us)", "(GB/s)", "(GB/s)", "");
  absl::StrAppendFormat(&text, "# %12s %13s %9s %6s%s%s\n", "size", "count", "type", "op",
                        first_line, first.pipelined ? first_line : "");
  absl::StrAppendFormat(&text, "# %12s %13s %9s %6s%s%s\n", "(B)", "(elements)", "", "",
                        second_line, first.pipelined ? second_line : "");
  return text;
}

std::string SizeTableRow(const SizeRow& row, const Options& options) {
  const char* op = HasOperation(options.collective) ? options.op.c_str() : "-";
  std::string in_place;
  if (row.in_place) {
    in_place = TimingCells(*row.in_place);
  } else if (row.pipelined) {
    in_place = absl::StrFormat(" %12s %10s %10s %8s", "-", "-", "-", "-");
  }
  return absl::StrFormat("  %12d %13d %9s %6s%s%s\n", row.bytes,
                         row.bytes / ElementSize(options.type), options.type, op, TimingCells(row),
                         in_place);
}

std::string SizeTableEnd(const std::vector<SizeRow>& rows, const LaunchFacts& facts) {
  if (rows.empty()) return "";
  double sum = 0;
  for (const SizeRow& row : rows) sum += row.busbw_gbs;
  return absl::StrFormat("# %s on %s. Avg bus bandwidth: %.3f GB/s\n",
                         Count(facts.ranks.size(), "rank"), Count(facts.nodes, "node"),
                         sum / static_cast<double>(rows.size()));
}

std::string NameOf(uint32_t rank, const LaunchFacts& facts) {
  if (rank >= facts.ranks.size() || facts.ranks[rank].host.empty()) {
    return absl::StrCat("rank ", rank);
  }
  const std::string& host = facts.ranks[rank].host;
  const auto others =
      std::count_if(facts.ranks.begin(), facts.ranks.end(),
                    [&](const LaunchFacts::Rank& other) { return other.host == host; });
  return others > 1 ? absl::StrCat(Escape(host), ":", rank) : Escape(host);
}

double MedianBandwidth(const std::vector<PairRow>& rows) {
  std::vector<double> values;
  for (const PairRow& row : rows) values.push_back(row.bandwidth_gbs);
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

std::string PairTable(const std::vector<PairRow>& rows, const LaunchFacts& facts) {
  size_t width = 4;
  for (const PairRow& row : rows) {
    width = std::max({width, NameOf(row.from, facts).size(), NameOf(row.to, facts).size()});
  }
  const int w = static_cast<int>(width);
  std::string text =
      absl::StrFormat("# %-*s  %-*s %12s %12s\n# %-*s  %-*s %12s %12s\n", w, "from", w, "to",
                      "latency", "bandwidth", w, "", w, "", "(us)", "(GB/s)");
  const double median = MedianBandwidth(rows);
  size_t slow = 0;
  for (const PairRow& row : rows) {
    const bool is_slow = row.bandwidth_gbs < kSlowPart * median;
    slow += is_slow ? 1 : 0;
    absl::StrAppendFormat(
        &text, "  %-*s  %-*s %12.2f %12.3f%s\n", w, NameOf(row.from, facts), w,
        NameOf(row.to, facts), row.latency_us, row.bandwidth_gbs,
        is_slow ? absl::StrFormat("  SLOW: %.0f%% of the median", 100 * row.bandwidth_gbs / median)
                : "");
  }
  absl::StrAppendFormat(&text, "# median %.3f GB/s; %s below half of it\n", median,
                        slow == 0   ? "no pair is"
                        : slow == 1 ? "1 pair is"
                                    : absl::StrCat(slow, " pairs are"));
  return text;
}

std::string ScalingTable(const std::vector<ScalingRow>& rows) {
  std::vector<std::vector<std::string>> cells(2);
  for (const Column& column : kColumns) {
    cells[0].push_back(column.head);
    cells[1].push_back(*column.unit == '\0' ? "" : absl::StrCat("(", column.unit, ")"));
  }
  for (const ScalingRow& row : rows) {
    cells.emplace_back();
    for (const Column& column : kColumns) cells.back().push_back(column.text(row));
  }
  std::string text;
  for (size_t line = 0; line < cells.size(); ++line) {
    text += line < 2 ? "#" : " ";
    for (size_t i = 0; i < cells[line].size(); ++i) {
      size_t width = 0;
      for (const auto& other : cells) width = std::max(width, other[i].size());
      absl::StrAppendFormat(&text, " %*s", static_cast<int>(width + 1), cells[line][i]);
    }
    text += "\n";
  }
  bool marked = false;
  for (const ScalingRow& row : rows) {
    marked = marked || row.steps > 0;
    text += PaysLine(row);
  }
  if (!marked) {
    text +=
        "# No worker printed dtrain-step lines: speed-up and shares are of the whole run.\n"
        "# See dtrain bench scaling --help\n";
  }
  return text;
}

}  // namespace dtrain::bench
