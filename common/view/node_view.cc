// SPDX-License-Identifier: Apache-2.0
#include "common/view/node_view.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/cpulist.h"
#include "common/view/rank_view.h"

namespace dtrain::view {
namespace {

using Json = nlohmann::ordered_json;

std::vector<std::string> Strings(const google::protobuf::RepeatedPtrField<std::string>& from) {
  return {from.begin(), from.end()};
}

double Seconds(int64_t nanos) { return static_cast<double>(nanos) / 1e9; }

// None, when it is no list.
std::vector<int> CpusOf(const std::string& list) {
  return ParseCpuList(list).value_or(std::vector<int>());
}

size_t FreeCpus(const v1::NodeReport& report) {
  const std::vector<int> cpus = CpusOf(report.inventory().allowed_cpus());
  std::vector<bool> is_free(cpus.empty() ? 0 : static_cast<size_t>(cpus.back()) + 1);
  for (const int cpu : cpus) is_free[static_cast<size_t>(cpu)] = true;
  auto take = [&](const std::string& list) {
    for (const int cpu : CpusOf(list)) {
      if (static_cast<size_t>(cpu) < is_free.size()) is_free[static_cast<size_t>(cpu)] = false;
    }
  };
  for (const v1::HeldCores& held : report.inventory().held_cores()) take(held.cpulist());
  for (const v1::JobOnNode& job : report.jobs()) {
    if (job.state() != v1::JobOnNode::STATE_FINISHED) take(job.cpulist());
  }
  return static_cast<size_t>(std::count(is_free.begin(), is_free.end(), true));
}

// Who has it: as the agent's books say, or as a job's plan does.
std::string HolderOf(const v1::Gpu& gpu, const v1::NodeReport& report) {
  if (!gpu.withheld().empty()) return gpu.withheld();
  for (const v1::JobOnNode& job : report.jobs()) {
    if (job.state() == v1::JobOnNode::STATE_FINISHED) continue;
    const auto& uuids = job.gpu_uuids();
    if (std::find(uuids.begin(), uuids.end(), gpu.uuid()) != uuids.end()) {
      return absl::StrCat("held by job ", job.job_id(), " of ", job.owner());
    }
  }
  return "";
}

// What uses it now. Only a process that is a rank itself, not a child of one, says whose it is.
// Jobs that the caller may not see are not in the report.
Json ProcessView(const v1::GpuProcess& process, const v1::NodeReport& report) {
  Json json = {{"pid", process.pid()}, {"name", process.name()}};
  if (process.memory_bytes() != 0) json["memory_bytes"] = process.memory_bytes();
  if (process.graphics()) json["graphics"] = true;
  for (const v1::JobOnNode& job : report.jobs()) {
    for (const v1::RankOnNode& rank : job.ranks()) {
      if (rank.pid() == 0 || rank.pid() != process.pid() || rank.ended()) continue;
      json["job"] = job.job_id();
      json["rank"] = rank.rank();
      return json;
    }
  }
  return json;
}

Json GpuView(const v1::Gpu& gpu, const v1::NodeReport& report) {
  Json json = {{"index", gpu.index()},
               {"uuid", gpu.uuid()},
               {"name", gpu.name()},
               {"memory_total_bytes", gpu.memory_total_bytes()},
               {"memory_used_bytes", gpu.memory_used_bytes()}};
  if (gpu.has_utilisation_percent()) json["utilisation_percent"] = gpu.utilisation_percent();
  if (gpu.has_temperature_celsius()) json["temperature_celsius"] = gpu.temperature_celsius();
  if (gpu.has_uncorrected_ecc_errors()) {
    json["uncorrected_ecc_errors"] = gpu.uncorrected_ecc_errors();
  }
  if (gpu.has_last_xid()) json["last_xid"] = gpu.last_xid();
  if (!gpu.fault().empty()) json["fault"] = gpu.fault();
  if (std::string holder = HolderOf(gpu, report); !holder.empty()) json["withheld"] = holder;
  for (const v1::GpuProcess& process : gpu.processes()) {
    json["processes"].push_back(ProcessView(process, report));
  }
  return json;
}

RankCounts CountsOf(const v1::JobOnNode& job) {
  RankCounts counts;
  for (const v1::RankOnNode& rank : job.ranks()) {
    if (rank.ended()) {
      counts.Ended(rank.exit());
    } else {
      ++(rank.pid() != 0 ? counts.running : counts.waiting);
    }
  }
  return counts;
}

}  // namespace

const char* StateName(v1::JobOnNode::State state) {
  constexpr const char* kNames[] = {"unknown", "joining", "running", "away", "ending", "finished"};
  const auto index = static_cast<size_t>(state);
  return index < std::size(kNames) ? kNames[index] : kNames[0];
}

Json JobView(const v1::JobOnNode& job, const std::string& host, int64_t now_unix_nanos) {
  Json json = {
      {"id", job.job_id()},
      {"attempt", job.has_elastic() ? job.elastic().attempt() : job.attempt()},
      {"owner", job.owner()},
      {"uid", job.uid()},
      {"host", host},
      {"state", StateName(job.state())},
      {"begin_unix_s", Seconds(job.since_unix_nanos())},
      {"seconds", std::max(Seconds(now_unix_nanos) - Seconds(job.since_unix_nanos()), 0.0)},
      {"gpus", Strings(job.gpu_uuids())},
      {"cpus", job.cpulist()}};
  // Not of a job that who asks may not see.
  if (job.world_size() == 0) return json;
  json["command"] = Strings(job.argv());
  json["node_rank"] = job.node_rank();
  json["nodes"] = job.node_count();
  json["world_size"] = job.world_size();
  json["ranks"] = CountsOf(job).View();
  return json;
}

Json RankView(const v1::RankOnNode& rank, const std::string& host) {
  Json json = RankView({.rank = rank.rank(),
                        .host = host,
                        .pid = rank.pid(),
                        .ended = rank.ended(),
                        .exit = rank.has_exit() ? &rank.exit() : nullptr,
                        .progress = &rank.progress()});
  json["log"] = {{"stdout", {{"end", rank.stdout_bytes()}}},
                 {"stderr", {{"end", rank.stderr_bytes()}}}};
  return json;
}

Json NodeView(const v1::NodeReport& report, const std::string& host) {
  const v1::Inventory& inventory = report.inventory();
  Json json = {{"host", host},
               // Only a resident agent says since when it is there.
               {"resident", report.started_unix_nanos() != 0},
               {"version", report.version()},
               {"build", report.build()},
               {"account", report.account()},
               {"hostname", inventory.hostname()},
               {"machine", inventory.machine()},
               {"kernel", inventory.kernel()},
               {"load", report.load()},
               {"memory_bytes", inventory.memory_bytes()},
               {"memory_available_bytes", report.memory_available_bytes()},
               {"cpus", inventory.allowed_cpus()},
               {"cores", CpusOf(inventory.allowed_cpus()).size()},
               {"free_cores", FreeCpus(report)},
               {"gpu_driver", inventory.gpu_driver()}};
  if (report.started_unix_nanos() != 0) {
    json["started_unix_s"] = Seconds(report.started_unix_nanos());
    json["now_unix_s"] = Seconds(report.now_unix_nanos());
    json["connections"] = report.connections();
    if (!report.quarantine().empty()) json["quarantine"] = report.quarantine();
    if (!report.last_crash().empty()) {
      json["last_crash"] = report.last_crash();
      json["last_crash_unix_s"] = Seconds(report.last_crash_unix_nanos());
    }
  }
  if (!inventory.gpu_error().empty()) json["gpu_error"] = inventory.gpu_error();
  json["gpus"] = Json::array();
  for (const v1::Gpu& gpu : inventory.gpus()) json["gpus"].push_back(GpuView(gpu, report));
  json["jobs"] = Json::array();
  for (const v1::JobOnNode& job : report.jobs()) {
    json["jobs"].push_back(JobView(job, host, report.now_unix_nanos()));
  }
  json["warnings"] = Strings(inventory.warnings());
  return json;
}

}  // namespace dtrain::view
