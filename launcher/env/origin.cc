// SPDX-License-Identifier: Apache-2.0
#include "launcher/env/origin.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace dtrain::env {
namespace {

constexpr absl::string_view kGiven = "given with -x or --env-file";
constexpr absl::string_view kForwarded = "forwarded from your environment";
constexpr absl::string_view kNode = "the node's own";

struct Group {
  absl::string_view origin;
  std::vector<absl::string_view> names;  // a prefix when it ends in '*'
};

// In the order in which they are printed; the first that has the name counts.
const std::vector<Group>& Groups() {
  static const auto* groups = new std::vector<Group>{
      {"dtrain's", {"DTRAIN_DEVICE", "DTRAIN_PAGE_FD", "DTRAIN_*"}},
      {"torchrun's (--contract torch)",
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
        "NODE_RANK", "ROLE_*", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_*",
        "NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "OMP_NUM_THREADS"}},
      {"DeepSpeed's and Horovod's (--contract torch or horovod)",
       {"LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"}},
      {"Horovod's (--contract horovod)", {"HOROVOD_*"}},
      {"JAX's (--contract jax)", {"JAX_*", "OMPI_MCA_orte_hnp_uri"}},
      {"Open MPI's (--contract mpi or jax)", {"OMPI_COMM_WORLD_*"}},
      {"PMIx, for Open MPI (--contract mpi)",
       {"PMIX_*", "OMPI_MCA_schizo", "OMPI_MCA_mpi_oversubscribe"}},
      {"PMI, for MPICH and libdtrain (--contract mpi or dtrain)",
       {"PMI_*", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "MPIR_CVAR_PMI_VERSION"}},
      {"TensorFlow's (--tf-config)", {"TF_CONFIG"}},
      {"a Slurm task's (--emulate slurm)", {"SLURM_*", "SLURMD_NODENAME"}},
      {"SageMaker's (--emulate sagemaker)", {"SM_*"}},
      {"for a torchrun on each node (--contract torchrun-agent)", {"PET_*"}},
      {"the interface of the node's address",
       {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME",
        "OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include", "PRTE_MCA_prte_if_include",
        "FI_TCP_IFACE", "FI_SOCKETS_IFACE", "UCX_NET_DEVICES", "MPIR_CVAR_INTERFACE_HOSTNAME"}},
      {"on the node's own disk, as the home is on a network file system (--node-caches)",
       {"CUDA_CACHE_PATH", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR"}},
      {"the rank's devices (--gpu-bind)", {"CUDA_VISIBLE_DEVICES"}},
      {"set for every worker", {"PYTHONUNBUFFERED", "PWD"}},
  };
  return *groups;
}

bool Matches(absl::string_view pattern, absl::string_view name) {
  return absl::EndsWith(pattern, "*")
             ? absl::StartsWith(name, pattern.substr(0, pattern.size() - 1))
             : name == pattern;
}

std::string Quoted(absl::string_view value) {
  const bool plain = std::all_of(value.begin(), value.end(), [](char c) {
    return absl::ascii_isalnum(c) || absl::StrContains("._/:=,+-@%^", absl::string_view(&c, 1));
  });
  if (plain) return std::string(value);
  return absl::StrCat("'", absl::StrReplaceAll(value, {{"'", "'\\''"}}), "'");
}

}  // namespace

std::string OriginOf(absl::string_view name, absl::string_view value, const v1::JobPart& part) {
  const auto contains = [&](const auto& names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  bool given = contains(part.explicit_env());
  for (const v1::Program& program : part.programs()) {
    given = given || contains(program.explicit_env());
  }
  if (given) return std::string(kGiven);
  for (const v1::EnvVar& variable : part.env()) {
    if (variable.name() == name && variable.value() == value) return std::string(kForwarded);
  }
  for (const Group& group : Groups()) {
    const bool has = std::any_of(group.names.begin(), group.names.end(),
                                 [&](absl::string_view each) { return Matches(each, name); });
    if (has) return std::string(group.origin);
  }
  return std::string(kNode);
}

std::string FormatEnvironment(std::vector<std::string> variables, const v1::JobPart& part) {
  std::sort(variables.begin(), variables.end());
  std::map<std::string, std::string> lines;  // by origin
  for (const std::string& variable : variables) {
    const size_t equals = variable.find('=');
    if (equals == std::string::npos) continue;
    const std::string name = variable.substr(0, equals);
    const std::string value = variable.substr(equals + 1);
    absl::StrAppend(&lines[OriginOf(name, value, part)], name, "=", Quoted(value), "\n");
  }
  std::vector<std::string> order;
  for (const Group& group : Groups()) order.emplace_back(group.origin);
  for (const absl::string_view last : {kGiven, kForwarded, kNode}) order.emplace_back(last);
  std::string out;
  for (const std::string& origin : order) {
    const auto found = lines.find(origin);
    if (found == lines.end()) continue;
    absl::StrAppend(&out, out.empty() ? "" : "\n", "# ", origin, "\n", found->second);
  }
  return out;
}

std::string FormatProcess(absl::string_view proc) {
  std::vector<std::string> from_launcher, limits;
  std::string cpus;
  for (absl::string_view line : absl::StrSplit(proc, '\n')) {
    const size_t name_end = line.rfind(") ");
    if (name_end != line.npos && from_launcher.empty()) {
      // "7 (cat) R 1 ..."; nice is the 19th.
      const std::vector<absl::string_view> fields =
          absl::StrSplit(line.substr(name_end + 2), ' ', absl::SkipWhitespace());
      if (fields.size() > 16) from_launcher.push_back(absl::StrCat("nice ", fields[16]));
    } else if (absl::ConsumePrefix(&line, "Umask:")) {
      from_launcher.push_back(absl::StrCat("umask ", absl::StripAsciiWhitespace(line)));
    } else if (absl::ConsumePrefix(&line, "Cpus_allowed_list:")) {
      cpus = std::string(absl::StripAsciiWhitespace(line));
    } else if (absl::ConsumePrefix(&line, "Max ")) {
      for (const char* name : {"stack size", "core file size", "processes", "open files",
                               "locked memory", "address space", "cpu time"}) {
        absl::string_view rest = line;
        if (!absl::ConsumePrefix(&rest, name)) continue;
        const std::vector<absl::string_view> fields =
            absl::StrSplit(rest, ' ', absl::SkipWhitespace());
        if (!fields.empty()) limits.push_back(absl::StrCat(name, " ", fields[0]));
      }
    }
  }
  std::string out;
  if (!from_launcher.empty()) {
    absl::StrAppend(&out, "\n# as this shell, on all hosts\n# ", absl::StrJoin(from_launcher, ", "),
                    "\n");
  }
  if (!cpus.empty()) absl::StrAppend(&out, "\n# its CPUs (--bind)\n# ", cpus, "\n");
  if (!limits.empty()) {
    absl::StrAppend(&out, "\n# its limits: the host's; open files as this shell\n# ",
                    absl::StrJoin(limits, ", "), "\n");
  }
  return out;
}

}  // namespace dtrain::env
