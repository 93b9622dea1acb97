// SPDX-License-Identifier: Apache-2.0
#include "common/view/node_metrics.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/view/node_view.h"

namespace dtrain::view {

void AddFamily(std::string& out, absl::string_view name, absl::string_view type,
               absl::string_view help) {
  absl::StrAppend(&out, "# HELP ", name, " ", help, "\n# TYPE ", name, " ", type, "\n");
}

std::string Label(absl::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '\\' || c == '"') out += '\\';
    out += c;
  }
  return out;
}

namespace {

using Json = nlohmann::ordered_json;

struct Family {
  const char* name;
  const char* help;
  const char* key;  // of NodeView, or of one of its GPUs
};

constexpr Family kOfNode[] = {
    {"dtrain_node_load", "Load of the last minute.", "load"},
    {"dtrain_node_memory_bytes", "Memory of the node.", "memory_bytes"},
    {"dtrain_node_memory_available_bytes", "Memory available to programs.",
     "memory_available_bytes"},
    {"dtrain_node_cores", "Cores that jobs may use.", "cores"},
    {"dtrain_node_cores_free", "Cores that no job holds.", "free_cores"},
    {"dtrain_agent_connections", "Open connections of the agent.", "connections"},
    {"dtrain_agent_last_crash_timestamp_seconds", "Time of the agent's last crash on this node.",
     "last_crash_unix_s"},
};

// Most GPUs do not tell all of it.
constexpr Family kOfGpu[] = {
    {"dtrain_gpu_memory_bytes", "Memory of a GPU.", "memory_total_bytes"},
    {"dtrain_gpu_memory_used_bytes", "GPU memory in use.", "memory_used_bytes"},
    {"dtrain_gpu_utilisation_percent", "GPU utilisation.", "utilisation_percent"},
    {"dtrain_gpu_temperature_celsius", "GPU temperature.", "temperature_celsius"},
    {"dtrain_gpu_uncorrected_ecc_errors", "Uncorrected ECC errors since the driver was loaded.",
     "uncorrected_ecc_errors"},
    {"dtrain_gpu_last_xid", "Last error (Xid) that the driver logged since the agent started.",
     "last_xid"},
};

void AddSample(std::string& out, const char* name, const std::string& labels, const Json& value) {
  if (value.is_number()) {
    absl::StrAppendFormat(&out, "%s{%s} %.17g\n", name, labels, value.get<double>());
  }
}

std::string GpuLabels(const std::string& host, const Json& gpu) {
  return absl::StrCat(host, ",gpu=\"", gpu["index"].get<uint32_t>(), "\",uuid=\"",
                      Label(gpu["uuid"].get<std::string>()), "\"");
}

// 1 for each GPU that does not have the member.
void AddFlags(std::string& out, const std::string& host, const Json& node, const char* name,
              const char* help, const char* key) {
  AddFamily(out, name, "gauge", help);
  for (const Json& gpu : node["gpus"]) {
    AddSample(out, name, GpuLabels(host, gpu), gpu.contains(key) ? 0 : 1);
  }
}

void AddJobs(std::string& out, const std::string& host, const Json& node) {
  AddFamily(out, "dtrain_node_job_state", "gauge", "1 for the state of a job on this node.");
  for (const Json& job : node["jobs"]) {
    absl::StrAppend(&out, "dtrain_node_job_state{", host, ",job=\"",
                    Label(job["id"].get<std::string>()), "\",owner=\"",
                    Label(job["owner"].get<std::string>()), "\",state=\"",
                    job["state"].get<std::string>(), "\"} 1\n");
  }
}

}  // namespace

std::string NodeMetrics(const v1::NodeReport& report, const std::string& host, bool openmetrics) {
  const Json node = NodeView(report, host);
  const std::string label = absl::StrCat("host=\"", Label(host), "\"");
  std::string out;
  for (const Family& family : kOfNode) {
    AddFamily(out, family.name, "gauge", family.help);
    if (node.contains(family.key)) AddSample(out, family.name, label, node[family.key]);
  }
  AddFamily(out, "dtrain_node_quarantined", "gauge",
            "1 if the node takes no jobs, or none of one user's: SIGKILL does not end a process.");
  AddSample(out, "dtrain_node_quarantined", label, node.contains("quarantine") ? 1 : 0);
  for (const Family& family : kOfGpu) {
    AddFamily(out, family.name, "gauge", family.help);
    for (const Json& gpu : node["gpus"]) {
      if (gpu.contains(family.key)) {
        AddSample(out, family.name, GpuLabels(label, gpu), gpu[family.key]);
      }
    }
  }
  AddFlags(out, label, node, "dtrain_gpu_usable", "0 if the GPU has a fault.", "fault");
  AddFlags(out, label, node, "dtrain_gpu_free", "0 if a job holds the GPU or it is withheld.",
           "withheld");
  AddJobs(out, label, node);
  return openmetrics ? out + "# EOF\n" : out;
}

}  // namespace dtrain::view
