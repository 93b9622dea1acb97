// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/kubernetes.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/text.h"
#include "launcher/hosts/allocation.h"
#include "launcher/hosts/host_list_builder.h"
#include "launcher/hosts/source.h"

namespace dtrain::hosts {
namespace {

constexpr absl::string_view kMpiHostfile = "/etc/mpi/hostfile";
constexpr absl::string_view kKubexec = "/etc/mpi/kubexec.sh";  // up to v0.3 of the operator

std::vector<std::string> Words(absl::string_view text) {
  return absl::StrSplit(text, absl::ByAnyChar(" \t\r\n"), absl::SkipEmpty());
}

// Open MPI splits its parameters at blanks and knows no quotes; --rsh does.
std::string AsRshWord(const std::string& word) {
  if (word.find_first_of("'\"\\") == std::string::npos) return word;
  return absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'");
}

std::string AsRsh(const std::vector<std::string>& words) {
  return absl::StrJoin(
      words, " ", [](std::string* out, const std::string& word) { out->append(AsRshWord(word)); });
}

// The script ends with `/opt/kube/kubectl exec ${POD_NAME} [--container C] -- /bin/sh -c "$*"`.
// Itself it cannot be --rsh: without -i kubectl passes no standard input.
absl::StatusOr<std::string> RshOfKubexec(const FileReader& read) {
  const std::string path(kKubexec);
  auto failed = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(
        "OMPI_MCA_plm_rsh_agent is ", path, ", but ", why,
        ", so dtrain does not know how to reach the pods; give --rsh 'kubectl exec -i {host} --'"));
  };
  absl::StatusOr<std::string> text = read(path);
  if (!text.ok()) return failed(text.status().message());
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    std::vector<std::string> words = Words(line);
    auto dashes = std::find(words.begin(), words.end(), "--");
    if (dashes - words.begin() < 3 || dashes == words.end() || words[1] != "exec" ||
        !absl::EndsWith(words[0], "kubectl") || words[2] != "${POD_NAME}") {
      continue;
    }
    words.erase(dashes + 1, words.end());
    words[1] = "exec -i";
    words[2] = "{host}";
    return absl::StrJoin(words, " ");
  }
  return failed("it does not call kubectl exec as the MPI operator's script does");
}

// How the operator means the pods to be reached: by ssh, since v0.4 of it.
absl::StatusOr<std::string> RshOfMpiJob(const EnvLookup& env, const FileReader& read) {
  const std::string agent = Get(env, "OMPI_MCA_plm_rsh_agent");
  if (agent == kKubexec) return RshOfKubexec(read);
  auto extra = FirstSet(env, {"OMPI_MCA_plm_rsh_args", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS",
                              "HYDRA_LAUNCH_EXTRA_ARGS"});
  if (agent.empty() && !extra) return "";
  // `ssh : rsh` are alternatives.
  std::vector<std::string> alternatives = absl::StrSplit(agent, ':');
  std::vector<std::string> words = Words(alternatives.front());
  const bool ssh = words.empty();
  if (ssh) words = {"ssh", "-x"};
  if (extra) {
    for (std::string& word : Words(extra->value)) words.push_back(std::move(word));
  }
  // The first of two such options counts, so the operator's win.
  if (ssh) {
    words.insert(words.end(), {"-o", "BatchMode=yes", "-o", "ServerAliveInterval=5", "-o",
                               "ServerAliveCountMax=3"});
  }
  words.emplace_back("{host}");
  return AsRsh(words);
}

// slotsPerWorker, for hosts whose line has no slots: operators older than
// kubeflow/mpi-operator#523 wrote names alone. Intel's variable may also be a word.
std::optional<uint32_t> SlotsPerWorker(const EnvLookup& env) {
  const auto named = FirstSet(env, {"OMPI_MCA_orte_set_default_slots", "I_MPI_PERHOST"});
  uint32_t slots = 0;
  if (!named || !absl::SimpleAtoi(named->value, &slots)) return std::nullopt;
  if (slots == 0 || slots > kMaxSlots) return std::nullopt;
  return slots;
}

// With runLauncherAsWorker our own pod is in the list, and has no sshd. Its host name is the first
// label of its name there, which is unique within the job.
void ReachOwnPodDirectly(const EnvLookup& env, HostList& hosts) {
  const std::string own = Get(env, "HOSTNAME");
  for (HostEntry& entry : hosts.entries) {
    if (own.empty() || (entry.host != own && !absl::StartsWith(entry.host, own + "."))) continue;
    entry.host = own;
    entry.way = Way::kSsh;  // not by --rsh: to this machine that is a process of its own
  }
}

// kubelet writes `10.1.2.3 train-0.svc.ns.svc.cluster.local train-0` for a pod with a subdomain,
// and without one `10.1.2.3 train-0`.
absl::StatusOr<std::string> DomainOf(const std::string& pod, const FileReader& read) {
  absl::StatusOr<std::string> text = read("/etc/hosts");
  if (!text.ok()) return text.status();
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    std::vector<std::string> words = Words(line.substr(0, line.find('#')));
    for (size_t i = 1; i < words.size(); ++i) {
      if (absl::StartsWith(words[i], pod + ".")) return words[i].substr(pod.size() + 1);
    }
  }
  return absl::InvalidArgumentError("the pod has no domain name");
}

absl::Status NotTheLeader(absl::string_view index, uint32_t nodes) {
  return absl::InvalidArgumentError(absl::StrCat(
      "this is the pod with JOB_COMPLETION_INDEX ", Escape(index, 20), " of a job on ", nodes,
      " nodes, and only the pod with index 0 launches it; in this one, run something that lets "
      "that "
      "pod in: sshd, or dtrain-agent serve --listen with certificates (docs/schedulers.md)"));
}

absl::Status NoNames(absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(
      "-N in an Indexed Job: the names of its pods are not known: ", why,
      "; give the Job's pod template a headless service as its subdomain, or name the pods with "
      "--hosts"));
}

}  // namespace

std::string MpiLauncherSign(const EnvLookup& env) {
  const std::string role = Get(env, "K_MPI_JOB_ROLE");
  if (role == "launcher") return "K_MPI_JOB_ROLE";
  if (Get(env, "OMPI_MCA_plm_rsh_agent") == kKubexec) return "OMPI_MCA_plm_rsh_agent";
  // Trainer v2 names no role. Its pods are those of Indexed Jobs, and only the launcher's container
  // is given the hostfile.
  const bool trainer = role.empty() && !Get(env, "JOB_COMPLETION_INDEX").empty();
  if (!trainer || Get(env, "OMPI_MCA_orte_default_hostfile") != kMpiHostfile) return "";
  return "OMPI_MCA_orte_default_hostfile";
}

absl::StatusOr<std::optional<Allocation>> ReadMpiJob(const EnvLookup& env, const FileReader& read) {
  const std::string sign = MpiLauncherSign(env);
  if (sign.empty()) return std::nullopt;
  auto named = FirstSet(env, {"OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile",
                              "I_MPI_HYDRA_HOST_FILE", "HYDRA_HOST_FILE"});
  const std::string path = named ? named->value : std::string(kMpiHostfile);
  absl::StatusOr<std::string> text = read(path);
  if (!text.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "this is the launcher pod of an MPI job, but ", text.status().message(),
        ", so its hosts are not known; name them with --hosts or --hostfile, or unset ", sign));
  }
  const Source source = Source::File(path);
  HostListBuilder builder(source);
  absl::Status lines = AddHostfileLines(source, *text, SlotsPerWorker(env), builder);
  if (!lines.ok()) return lines;
  absl::StatusOr<HostList> hosts = std::move(builder).Finish();
  if (!hosts.ok()) return hosts.status();
  absl::StatusOr<std::string> rsh = RshOfMpiJob(env, read);
  if (!rsh.ok()) return rsh.status();
  ReachOwnPodDirectly(env, *hosts);
  return Allocation{"MPIJob", *std::move(hosts), *std::move(rsh)};
}

absl::StatusOr<std::optional<Allocation>> ReadIndexedJob(const EnvLookup& env,
                                                         const FileReader& read,
                                                         std::optional<uint32_t> nodes) {
  const std::string index = Get(env, "JOB_COMPLETION_INDEX");
  if (index.empty() || nodes.value_or(1) <= 1) return std::nullopt;
  if (index != "0") return NotTheLeader(index, *nodes);
  const std::string own = Get(env, "HOSTNAME");
  const std::string pod = own.substr(0, own.find('.'));
  absl::string_view job = pod;
  if (!CheckHostName(own).ok() || !absl::ConsumeSuffix(&job, "-0") || job.empty()) {
    return NoNames(absl::StrCat("HOSTNAME is \"", Escape(own, 80), "\", which is not JOB-0"));
  }
  absl::StatusOr<std::string> domain = DomainOf(pod, read);
  if (!domain.ok()) return NoNames(domain.status().message());
  // Brackets would be a range.
  if (absl::Status name = CheckHostName(*domain); !name.ok()) return name;
  Source source = Source::OneLine("the pods of the Indexed Job");
  HostSpec spec;
  auto pattern =
      HostPattern::Parse(source, {}, absl::StrCat(job, "-[0-", *nodes - 1, "].", *domain));
  if (!pattern.ok()) return pattern.status();
  spec.pattern = *std::move(pattern);
  HostListBuilder builder(source);
  absl::Status status = builder.Add(spec);
  if (!status.ok()) return status;
  auto hosts = std::move(builder).Finish();
  if (!hosts.ok()) return hosts.status();
  hosts->entries.front().host = own;
  hosts->entries.front().way = Way::kSsh;  // to this machine: a process of its own
  return Allocation{"Indexed Job", *std::move(hosts), ""};
}

}  // namespace dtrain::hosts
