// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/allocation.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "launcher/hosts/host_list_builder.h"
#include "launcher/hosts/host_spec.h"
#include "launcher/hosts/hostfile_lines.h"
#include "launcher/hosts/slurm.h"
#include "launcher/hosts/source.h"

namespace dtrain::hosts {
namespace {

std::string Get(const EnvLookup& env, const std::string& name) { return env(name).value_or(""); }

absl::Status MissingData(absl::string_view manager, absl::string_view job_variable,
                         absl::string_view data) {
  return absl::InvalidArgumentError(absl::StrCat(
      job_variable, " is set but ", data, ", so the hosts of the ", manager,
      " job are not known; name them with --hosts or --hostfile, or unset ", job_variable));
}

// A node file: one line by each slot.
absl::StatusOr<HostList> ReadNodeFile(absl::string_view manager, absl::string_view job_variable,
                                      absl::string_view variable, const std::string& path,
                                      const FileReader& read) {
  absl::StatusOr<std::string> text = read(path);
  if (!text.ok()) {
    return MissingData(manager, job_variable,
                       absl::StrCat(variable, " cannot be used (", text.status().message(), ")"));
  }
  Source source = Source::File(path);
  HostListBuilder builder(source);
  absl::Status status = AddHostfileLines(source, *text, /*default_slots=*/1, builder);
  if (!status.ok()) return status;
  return std::move(builder).Finish();
}

absl::StatusOr<Allocation> ReadPbs(const EnvLookup& env, const FileReader& read) {
  std::string path = Get(env, "PBS_NODEFILE");
  if (path.empty()) return MissingData("PBS", "PBS_JOBID", "PBS_NODEFILE is not");
  auto hosts = ReadNodeFile("PBS", "PBS_JOBID", "PBS_NODEFILE", path, read);
  if (!hosts.ok()) return hosts.status();
  // pbs_tmrsh is not documented to forward standard input, which our stream needs.
  return Allocation{"PBS", *std::move(hosts), ""};
}

// LSB_MCPU_HOSTS: `h1 4 h2 8`.
absl::StatusOr<HostList> ParseMcpuHosts(const std::string& text) {
  Source source = Source::OneLine("LSB_MCPU_HOSTS");
  HostListBuilder builder(source);
  auto items = SplitHostList(text, /*blanks_separate=*/true);
  for (size_t i = 0; i < items.size(); i += 2) {
    auto [at, host] = items[i];
    if (i + 1 == items.size()) {
      return source.Error(at, "host without a number of slots", host, "LSF writes pairs of them");
    }
    HostSpec spec;
    spec.at = at;
    auto pattern = HostPattern::Parse(source, at, host);
    if (!pattern.ok()) return pattern.status();
    spec.pattern = *std::move(pattern);
    auto slots =
        ParseNumber(source, items[i + 1].first, "slots", items[i + 1].second, 1, kMaxSlots);
    if (!slots.ok()) return slots.status();
    spec.slots = *slots;
    absl::Status status = builder.Add(spec);
    if (!status.ok()) return status;
  }
  return std::move(builder).Finish();
}

absl::StatusOr<Allocation> ReadLsf(const EnvLookup& env, const FileReader& read) {
  std::string path = Get(env, "LSB_DJOB_HOSTFILE");
  std::string pairs = Get(env, "LSB_MCPU_HOSTS");
  // LSB_HOSTS is not looked at: LSF cuts it short for big jobs.
  if (path.empty() && pairs.empty()) {
    return MissingData("LSF", "LSB_JOBID", "neither LSB_DJOB_HOSTFILE nor LSB_MCPU_HOSTS is");
  }
  auto hosts = path.empty() ? ParseMcpuHosts(pairs)
                            : ReadNodeFile("LSF", "LSB_JOBID", "LSB_DJOB_HOSTFILE", path, read);
  if (!hosts.ok()) return hosts.status();
  return Allocation{"LSF", *std::move(hosts), "blaunch {host}"};
}

absl::StatusOr<std::optional<Allocation>> Some(absl::StatusOr<Allocation> allocation) {
  if (!allocation.ok()) return allocation.status();
  return std::optional<Allocation>(*std::move(allocation));
}

}  // namespace

absl::StatusOr<std::optional<Allocation>> DetectAllocation(const EnvLookup& env,
                                                           const FileReader& read) {
  if (!Get(env, "SLURM_JOB_ID").empty() || !Get(env, "SLURM_JOBID").empty()) {
    return Some(ReadSlurm(env));
  }
  if (!Get(env, "PBS_JOBID").empty()) return Some(ReadPbs(env, read));
  if (!Get(env, "LSB_JOBID").empty()) return Some(ReadLsf(env, read));
  return std::optional<Allocation>();
}

}  // namespace dtrain::hosts
