// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/text.h"
#include "launcher/status/tables.h"

namespace dtrain::status {
namespace {

using Json = nlohmann::ordered_json;

// Of a page: eight GPUs on each of sixteen nodes.
constexpr size_t kMostGpus = 128;
constexpr size_t kMostJobs = 3;
constexpr double kGiB = 1 << 30;

// "31/80 GiB" in use.
std::string Memory(const Json& gpu) {
  return absl::StrFormat("%.0f/%.0f GiB", Number(At(gpu, "memory_used_bytes")) / kGiB,
                         Number(At(gpu, "memory_total_bytes")) / kGiB);
}

std::string WithUnit(const Json& number, absl::string_view unit) {
  return number.is_number() ? absl::StrCat(Text(number), unit) : "-";
}

bool IsFree(const Json& gpu) { return !At(gpu, "withheld").is_string(); }
bool IsSound(const Json& gpu) { return !At(gpu, "fault").is_string(); }

// "6/8": free, of all.
std::string GpuCount(const Json& node) {
  const Json& gpus = At(node, "gpus");
  if (At(node, "gpu_error").is_string()) return "?";
  if (!gpus.is_array()) return "-";
  if (gpus.empty()) return "0";
  const auto free = std::count_if(gpus.begin(), gpus.end(),
                                  [](const Json& gpu) { return IsFree(gpu) && IsSound(gpu); });
  return absl::StrCat(free, "/", gpus.size());
}

std::string Jobs(const Json& node) {
  std::vector<std::string> names;
  for (const Json& job : At(node, "jobs")) {
    names.push_back(absl::StrCat(Text(At(job, "id")), " (", Text(At(job, "owner")), ")"));
  }
  if (names.empty()) return "-";
  const size_t more = names.size() - std::min(names.size(), kMostJobs);
  names.resize(names.size() - more);
  return absl::StrCat(absl::StrJoin(names, ", "),
                      more > 0 ? absl::StrCat(" and ", more, " more") : "");
}

Row NodeRow(const Json& node) {
  const Json& cores = At(node, "cores");
  const std::string shown =
      cores.is_number() ? absl::StrCat(Text(At(node, "free_cores")), "/", Text(cores)) : "-";
  return {Text(At(node, "host")),
          Text(At(node, "state")),
          Text(At(node, "version")),
          shown,
          GpuCount(node),
          Jobs(node)};
}

Row GpuRow(const Json& node, const Json& gpu) {
  const Json& fault = At(gpu, "fault");
  const Json& holder = At(gpu, "withheld");
  return {Text(At(node, "host")),
          Text(At(gpu, "index")),
          Text(At(gpu, "name")),
          Memory(gpu),
          WithUnit(At(gpu, "utilisation_percent"), "%"),
          WithUnit(At(gpu, "temperature_celsius"), " C"),
          Text(At(gpu, "uncorrected_ecc_errors")),
          Text(At(gpu, "last_xid")),
          fault.is_string()    ? Text(fault, 120)
          : holder.is_string() ? Text(holder, 120)
                               : "free"};
}

// Why a node is not as it should be, a line each.
std::string Notes(const Json& nodes) {
  std::string out;
  for (const Json& node : nodes) {
    for (const char* key : {"why", "gpu_error"}) {
      const Json& why = At(node, key);
      if (why.is_string())
        absl::StrAppend(&out, Text(At(node, "host")), ": ", Text(why, 1000), "\n");
    }
  }
  return out;
}

}  // namespace

std::string NodesPage(const Json& nodes) {
  std::vector<Row> rows = {{"NODE", "STATE", "VERSION", "CORES", "GPUS", "JOBS"}};
  std::vector<Row> gpus = {{"NODE", "GPU", "NAME", "MEMORY", "USE", "TEMP", "ECC", "XID", "STATE"}};
  size_t more = 0;
  for (const Json& node : nodes) {
    rows.push_back(NodeRow(node));
    for (const Json& gpu : At(node, "gpus")) {
      if (gpus.size() <= kMostGpus) {
        gpus.push_back(GpuRow(node, gpu));
      } else {
        ++more;
      }
    }
  }
  std::string out = Align(rows);
  if (gpus.size() > 1) absl::StrAppend(&out, "\n", Align(gpus));
  if (more > 0) absl::StrAppend(&out, "and ", Count(more, "more GPU"), "; --json has all\n");
  if (const std::string notes = Notes(nodes); !notes.empty()) absl::StrAppend(&out, "\n", notes);
  return out;
}

}  // namespace dtrain::status
