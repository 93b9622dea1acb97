// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/allocation.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/text.h"
#include "launcher/hosts/host_list_builder.h"
#include "launcher/hosts/hostfile.h"
#include "launcher/hosts/kubernetes.h"
#include "launcher/hosts/slurm.h"
#include "launcher/hosts/source.h"

namespace dtrain::hosts {
namespace {

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

// A manager's own starter has run this command on several nodes, and the copy with the lowest
// number cannot be told from a job script: that one launches, the others leave.
absl::Status RefuseCopy(const EnvLookup& env, absl::string_view starter,
                        const std::vector<std::string>& numbers, const std::string& lowest) {
  for (const std::string& name : numbers) {
    const std::string value = Get(env, name);
    if (value.empty() || value == lowest) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        starter, " has started this copy of the command (", name, " is ", Escape(value, 20),
        "), and each copy would start the whole job; run it once, without ", starter,
        ", in the job script: it starts the ranks on all nodes by itself. (If ", starter,
        " is not involved, unset ", name, ")"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Allocation> ReadPbs(const EnvLookup& env, const FileReader& read) {
  absl::Status copy = RefuseCopy(env, "pbsdsh", {"PBS_NODENUM", "PBS_VNODENUM"}, "0");
  if (!copy.ok()) return copy;
  std::string path = Get(env, "PBS_NODEFILE");
  if (path.empty()) return MissingData("PBS", "PBS_JOBID", "PBS_NODEFILE is not");
  auto hosts = ReadNodeFile("PBS", "PBS_JOBID", "PBS_NODEFILE", path, read);
  if (!hosts.ok()) return hosts.status();
  // Not pbs_tmrsh: it passes no standard input, which our stream needs.
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
  absl::Status copy = RefuseCopy(env, "blaunch", {"LSF_PM_TASKID"}, "1");
  if (!copy.ok()) return copy;
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

// PBS, LSF and Grid Engine also give one slot to a node where the job requested only GPUs.
absl::StatusOr<std::optional<Allocation>> MarkSingleSlots(absl::StatusOr<Allocation> allocation) {
  if (!allocation.ok()) return allocation.status();
  for (HostEntry& entry : allocation->hosts.entries) entry.single_slot = entry.slots == 1u;
  return std::optional<Allocation>(*std::move(allocation));
}

absl::StatusOr<std::optional<Allocation>> Some(absl::StatusOr<Allocation> allocation) {
  if (!allocation.ok()) return allocation.status();
  return std::optional<Allocation>(*std::move(allocation));
}

}  // namespace

absl::StatusOr<std::optional<Allocation>> DetectAllocation(const EnvLookup& env,
                                                           const FileReader& read,
                                                           std::optional<uint32_t> nodes) {
  if (!Get(env, "SLURM_JOB_ID").empty() || !Get(env, "SLURM_JOBID").empty()) {
    return Some(ReadSlurm(env, read));
  }
  if (!Get(env, "PBS_JOBID").empty()) return MarkSingleSlots(ReadPbs(env, read));
  if (!Get(env, "LSB_JOBID").empty()) return MarkSingleSlots(ReadLsf(env, read));
  // JOB_ID alone could be anybody's.
  if (!Get(env, "SGE_ROOT").empty() && !Get(env, "JOB_ID").empty() &&
      !Get(env, "PE_HOSTFILE").empty()) {
    return MarkSingleSlots(ReadGridEngine(env, read));
  }
  absl::StatusOr<std::optional<Allocation>> mpi_job = ReadMpiJob(env, read);
  if (!mpi_job.ok() || *mpi_job) return mpi_job;
  return ReadIndexedJob(env, read, nodes);
}

std::optional<Variable> FirstSet(const EnvLookup& env, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    std::optional<std::string> value = env(name);
    if (value && !value->empty()) return Variable{name, *std::move(value)};
  }
  return std::nullopt;
}

std::string Get(const EnvLookup& env, const std::string& name) { return env(name).value_or(""); }

namespace {

// `n1 4 all.q@n1 UNDEFINED`: a host, its slots, the queue and the processors. Several queues of a
// host have a line each.
absl::StatusOr<HostSpec> ParseLine(const Source& source, Position at, absl::string_view line) {
  std::vector<absl::string_view> words =
      absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
  if (words.size() < 2) {
    return source.Error(at, "host without a number of slots", words[0],
                        "Grid Engine writes HOST SLOTS QUEUE PROCESSORS");
  }
  HostSpec spec;
  spec.at = at;
  auto pattern = HostPattern::Parse(source, at, words[0]);
  if (!pattern.ok()) return pattern.status();
  spec.pattern = *std::move(pattern);
  const auto column = static_cast<size_t>(words[1].data() - line.data());
  auto slots = ParseNumber(source, at.Plus(column), "slots", words[1], 1, kMaxSlots);
  if (!slots.ok()) return slots.status();
  spec.slots = *slots;
  return spec;
}

}  // namespace

absl::StatusOr<Allocation> ReadGridEngine(const EnvLookup& env, const FileReader& read) {
  const std::string path = Get(env, "PE_HOSTFILE");
  absl::StatusOr<std::string> text = read(path);
  if (!text.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "PE_HOSTFILE is set but cannot be used (", text.status().message(),
        "), so the hosts of the Grid Engine job are not known; name them with --hosts or "
        "--hostfile, or unset PE_HOSTFILE"));
  }
  Source source = Source::File(path);
  HostListBuilder builder(source);
  Position at;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    if (line.find_first_not_of(" \t\r") != absl::string_view::npos) {
      auto spec = ParseLine(source, at, line);
      if (!spec.ok()) return spec.status();
      absl::Status status = builder.Add(*spec);
      if (!status.ok()) return status;
    }
    ++at.line;
  }
  auto hosts = std::move(builder).Finish();
  if (!hosts.ok()) return hosts.status();
  // Without -nostdin, which Open MPI adds, qrsh passes on our stream.
  return Allocation{"Grid Engine", *std::move(hosts), "qrsh -inherit -V {host}"};
}

}  // namespace dtrain::hosts
