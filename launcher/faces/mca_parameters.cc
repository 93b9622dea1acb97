// SPDX-License-Identifier: Apache-2.0
#include "launcher/faces/mca_parameters.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <optional>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/base/text.h"
#include "launcher/hosts/kubernetes.h"

namespace dtrain::faces {
namespace {

constexpr absl::string_view kArgs[] = {"plm_rsh_args", "plm_ssh_args"};
constexpr absl::string_view kAgents[] = {"plm_rsh_agent", "plm_ssh_agent"};
constexpr absl::string_view kHostfiles[] = {"orte_default_hostfile", "prte_default_hostfile"};
constexpr absl::string_view kBindings[] = {"hwloc_base_binding_policy",
                                           "hwloc_default_binding_policy"};
constexpr absl::string_view kOversubscribe[] = {"rmaps_base_oversubscribe"};

template <size_t kCount>
bool IsOneOf(absl::string_view key, const absl::string_view (&keys)[kCount]) {
  return std::find(std::begin(keys), std::end(keys), key) != std::end(keys);
}

bool IsTrue(absl::string_view value) {
  const std::string word = absl::AsciiStrToLower(value);
  return word == "1" || word == "true" || word == "t" || word == "yes" || word == "y" ||
         word == "enabled";
}

// A flag of dtrain launch stands on the line, or is set as a variable.
bool HasOursAnywhere(absl::string_view name, const LineBuilder& line,
                     const cli::Surroundings& surroundings) {
  const std::string variable =
      absl::StrCat("DTRAIN_", absl::AsciiStrToUpper(absl::StrReplaceAll(name, {{"-", "_"}})));
  return line.HasOurs(name) || IsSet(surroundings, variable);
}

// Set for all of a site or a build, and no way to a host: pbs_tmrsh passes no standard input, and
// `false` keeps Open MPI on its machine.
bool ReachesNobody(absl::string_view agent) {
  const absl::string_view name = agent.substr(agent.rfind('/') + 1);
  return name == "pbs_tmrsh" || name == "false";
}

bool IsAllocated(const cli::Surroundings& surroundings) {
  constexpr absl::string_view kJobs[] = {"SLURM_JOB_ID", "SLURM_JOBID", "PBS_JOBID", "LSB_JOBID",
                                         "PE_HOSTFILE"};
  return std::any_of(std::begin(kJobs), std::end(kJobs),
                     [&](absl::string_view name) { return !Variable(surroundings, name).empty(); });
}

// Open MPI splits the options at blanks and knows no quotes.
absl::Status ReachHosts(const McaParameters& parameters, LineBuilder& line) {
  // `ssh : rsh` are alternatives.
  const std::string agent(
      absl::StripAsciiWhitespace(parameters.agent.substr(0, parameters.agent.find(':'))));
  const bool ssh = agent.empty() || agent == "ssh";
  const std::vector<std::string> words = absl::StrSplit(parameters.args, ' ', absl::SkipEmpty());
  if (words.empty()) {
    if (!ssh) line.Flag("--rsh", agent);
    return absl::OkStatus();
  }
  if (ssh && words.size() == 2 && words[0] == "-p") {
    line.Flag("--ssh-port", words[1]);
    return absl::OkStatus();
  }
  if (absl::StrContains(parameters.args, '{')) {
    return absl::InvalidArgumentError(
        absl::StrCat("plm_rsh_args \"", Escape(parameters.args, 60),
                     "\": braces are not supported; put the options into ~/.ssh/config"));
  }
  std::string command = ssh ? "ssh -o BatchMode=yes" : agent;
  for (const std::string& word : words) absl::StrAppend(&command, " ", ShellWord(word));
  line.Flag("--rsh", absl::StrCat(command, " {host}"));
  return absl::OkStatus();
}

}  // namespace

bool NoteParameter(absl::string_view key, absl::string_view value, absl::string_view spelled,
                   McaParameters& out) {
  if (IsOneOf(key, kArgs)) {
    out.args = std::string(value);
    out.way = std::string(spelled);
  } else if (IsOneOf(key, kAgents)) {
    out.agent = std::string(value);
    out.way = std::string(spelled);
  } else if (IsOneOf(key, kHostfiles)) {
    out.hostfile = value == "none" ? "" : std::string(value);
  } else if (IsOneOf(key, kBindings)) {
    out.binding = std::string(value);
    out.binding_name = std::string(spelled);
  } else if (IsOneOf(key, kOversubscribe)) {
    out.oversubscribe = IsTrue(value);
  } else {
    return false;
  }
  return true;
}

McaParameters ParametersOfEnvironment(const LineBuilder& line,
                                      const cli::Surroundings& surroundings) {
  const auto says = [&](absl::string_view name) {
    return HasOursAnywhere(name, line, surroundings);
  };
  McaParameters set;
  const auto take = [&](const auto& keys) {
    for (const absl::string_view prefix : {"OMPI_MCA_", "PRTE_MCA_"}) {
      for (const absl::string_view key : keys) {
        const std::string name = absl::StrCat(prefix, key);
        const std::string value = Variable(surroundings, name);
        if (!value.empty()) NoteParameter(key, value, name, set);
      }
    }
  };
  if (!says("oversubscribe")) take(kOversubscribe);
  // --cores-per-rank contradicts `none`.
  if (!says("bind") && !says("cores-per-rank")) take(kBindings);
  // In an MPIJob they are the operator's, and describe the allocation.
  const auto env = [&](const std::string& name) {
    return std::optional<std::string>(Variable(surroundings, name));
  };
  if (!hosts::MpiLauncherSign(env).empty()) return set;
  const bool named = line.Has("host") || line.Has("hostfile");
  const bool others = says("hosts") || says("hostfile");
  // Open MPI takes a site's default only where no resource manager has given it hosts.
  if (!named && !others && !IsAllocated(surroundings)) take(kHostfiles);
  // Without hosts all ranks run here, or where an allocation has its own way to reach them.
  if (!named && !others && set.hostfile.empty()) return set;
  const bool chosen = says("rsh") || says("ssh-port") || says("ssh-config") || says("agent") ||
                      line.Has("launcher-exec");
  if (chosen) return set;
  take(kArgs);
  take(kAgents);
  if (ReachesNobody(set.agent)) set.agent.clear();
  return set;
}

absl::Status ApplyParameters(const McaParameters& parameters, LineBuilder& line, Translation& out) {
  if (!parameters.hostfile.empty() && !line.Has("host") && !line.Has("hostfile")) {
    line.Flag("--hostfile", parameters.hostfile);
  }
  if (parameters.oversubscribe && !line.Has("oversubscribe") && !line.Has("nooversubscribe")) {
    line.Switch("--oversubscribe");
  }
  if (!parameters.binding.empty() && !line.Has("bind-to")) {
    absl::Status bound = Bind(parameters.binding_name, parameters.binding, line);
    if (!bound.ok()) return bound;
  }
  if (!parameters.way.empty()) out.way = parameters.way;
  return ReachHosts(parameters, line);
}

absl::Status Bind(absl::string_view name, absl::string_view what, LineBuilder& line) {
  const std::string place = absl::AsciiStrToLower(what.substr(0, what.find(':')));
  if (place.empty()) return absl::OkStatus();
  if (place == "none" || place == "board") {
    line.Flag("--bind", "none");
  } else if (place == "socket" || place == "package" || place == "numa") {
    line.Flag("--bind", "numa");
  } else if (place == "core" || place == "hwthread" || absl::EndsWith(place, "cache") ||
             place == "user") {
    line.Flag("--bind", "core");
  } else {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": \"", Escape(place, 60), "\" is not none, hwthread, core, socket or numa"));
  }
  return absl::OkStatus();
}

}  // namespace dtrain::faces
