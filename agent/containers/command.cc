// SPDX-License-Identifier: Apache-2.0
#include "agent/containers/command.h"

#include <initializer_list>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace dtrain::containers {
namespace {

using Words = std::vector<std::string>;

void Add(Words& words, std::initializer_list<absl::string_view> more) {
  for (absl::string_view word : more) words.emplace_back(word);
}

void AddAll(Words& words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
}

std::string LimitText(rlim_t value) { return value == RLIM_INFINITY ? "-1" : absl::StrCat(value); }

void AddLimit(Words& words, absl::string_view name, const rlimit& limit) {
  Add(words, {"--ulimit",
              absl::StrCat(name, "=", LimitText(limit.rlim_cur), ":", LimitText(limit.rlim_max))});
}

std::string Volume(const Mount& mount) {
  return absl::StrCat(mount.source, ":", mount.target, mount.read_only ? ":ro" : "");
}

// The namespaces by which ranks on a node find each other, and whose words podman and docker share.
// The image's entrypoint would get the program as its arguments.
Words DaemonStyle(const Chosen& chosen, const Needs& run) {
  Words words = {chosen.program, "run"};
  Add(words, {"--rm", "-i", "--name", run.name, "--pull", "never", "--entrypoint", ""});
  Add(words, {"--network", "host", "--ipc", "host", "--uts", "host"});
  Add(words, {"--security-opt", "label=disable"});  // else SELinux forbids our folders and sockets
  return words;
}

void AddPlaces(const Needs& run, Words& words) {
  if (!run.working_directory.empty()) Add(words, {"--workdir", run.working_directory});
  for (const Mount& mount : run.mounts) Add(words, {"-v", Volume(mount)});
  for (const std::string& device : run.devices) Add(words, {"--device", device});
}

void AddVariables(const Needs& run, Words& words) {
  for (const std::string& name : run.variables) Add(words, {"--env", name});
  if (!run.environment_file.empty()) Add(words, {"--env-file", run.environment_file});
}

// In a PID namespace of its own all of it ends with its first process; in no cgroup of its own it
// stays in the worker's, where we find, limit and kill it.
Words Podman(const Chosen& chosen, const Needs& run) {
  Words words = DaemonStyle(chosen, run);
  // Its standard streams are ours, not copied by podman's monitor.
  Add(words, {"--cgroups", "disabled", "--log-driver", "passthrough"});
  // The first process of a PID namespace ignores SIGTERM unless it has a handler.
  if (run.has_init) words.emplace_back("--init");
  // Else podman sets its own, also where it may not.
  AddLimit(words, "nofile", run.open_files);
  AddLimit(words, "nproc", run.processes);
  if (run.descriptors > 0) {
    Add(words, {"--preserve-fds", absl::StrCat(run.descriptors)});
  }
  AddPlaces(run, words);
  for (const std::string& uuid : run.gpu_uuids) {
    Add(words, {"--device", absl::StrCat("nvidia.com/gpu=", uuid)});
  }
  AddVariables(run, words);
  return words;
}

// A daemon starts it: nothing is inherited, and what it writes would belong to root.
Words Docker(const Chosen& chosen, const Needs& run) {
  Words words = DaemonStyle(chosen, run);
  // Processes that we can see and, as they are this user's, kill.
  Add(words, {"--pid", "host", "--user", absl::StrCat(run.uid, ":", run.gid)});
  for (const gid_t group : run.groups) {
    if (group != run.gid) Add(words, {"--group-add", absl::StrCat(group)});
  }
  Add(words, {"--log-driver", "none"});
  AddLimit(words, "nofile", run.open_files);
  AddLimit(words, "core", run.core);
  Add(words, {"--ulimit", "memlock=-1:-1"});  // for InfiniBand and pinned memory
  if (!run.cpulist.empty()) Add(words, {"--cpuset-cpus", run.cpulist});
  AddPlaces(run, words);
  if (!run.gpu_uuids.empty()) {
    // The quotes are a part of it: it is read as a line of comma-separated values.
    Add(words, {"--gpus", absl::StrCat("\"device=", absl::StrJoin(run.gpu_uuids, ","), "\"")});
  }
  AddVariables(run, words);
  return words;
}

// A child like any other, with our descriptors, in no namespace but that of mounts. Of variables it
// gets those with apptainer's prefix; without --cleanenv also what the node has set for apptainer.
Words Apptainer(const Chosen& chosen, const Needs& run) {
  Words words = {chosen.program, "--quiet", "exec", "--cleanenv"};
  if (!run.gpu_uuids.empty()) words.emplace_back("--nv");
  // Variables' values are not to be run through a shell. Singularity's older releases do not know
  // it.
  if (chosen.name == "apptainer") words.emplace_back("--no-eval");
  if (!run.working_directory.empty()) Add(words, {"--pwd", run.working_directory});
  for (const Mount& mount : run.mounts) Add(words, {"--bind", Volume(mount)});
  return words;
}

Words Enroot(const Chosen& chosen, const Needs& run) {
  Words words = {chosen.program, "start", "--rw"};
  for (const Mount& mount : run.mounts) {
    Add(words,
        {"--mount", absl::StrCat(mount.source, ":", mount.target, ":none:x-create=auto,rbind",
                                 mount.read_only ? ",ro" : "")});
  }
  for (const std::string& name : run.variables) Add(words, {"--env", name});
  return words;
}

}  // namespace

Mount ParseMount(absl::string_view text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  Mount mount;
  mount.source = parts[0];
  mount.target = parts.size() > 1 && !parts[1].empty() ? parts[1] : parts[0];
  mount.read_only = parts.size() > 2 && parts[2] == "ro";
  return mount;
}

std::vector<std::string> RunCommand(const Chosen& chosen, const Needs& run) {
  Words words;
  switch (chosen.runtime) {
    case Runtime::kPodman:
      words = Podman(chosen, run);
      break;
    case Runtime::kDocker:
      words = Docker(chosen, run);
      break;
    case Runtime::kApptainer:
      words = Apptainer(chosen, run);
      break;
    case Runtime::kEnroot:
      words = Enroot(chosen, run);
      break;
  }
  AddAll(words, run.options);
  words.push_back(chosen.image);
  // It has no flag for it, and its images' start scripts go to a folder of theirs.
  if (chosen.runtime == Runtime::kEnroot && !run.working_directory.empty()) {
    Add(words, {"/bin/sh", "-c", "cd \"$1\" && shift && exec \"$@\"", "sh", run.working_directory});
  }
  AddAll(words, run.argv);
  return words;
}

std::vector<std::string> LookCommand(const Chosen& chosen) {
  switch (chosen.runtime) {
    case Runtime::kPodman:
      return {chosen.program, "image", "exists", chosen.image};
    case Runtime::kDocker:
      return {chosen.program, "image", "inspect", "--format", "{{.Id}}", chosen.image};
    default:
      return {};
  }
}

std::vector<std::string> FetchCommand(const Chosen& chosen) {
  switch (chosen.runtime) {
    case Runtime::kPodman:
    case Runtime::kDocker:
      return {chosen.program, "pull", chosen.image};
    case Runtime::kApptainer:
      // Into its cache, where each rank then finds it.
      if (!absl::StrContains(chosen.image, "://")) return {};
      return {chosen.program, "--quiet", "exec", chosen.image, "/bin/sh", "-c", ":"};
    case Runtime::kEnroot:
      return {};
  }
  return {};
}

std::string ContainerName(uid_t owner, const v1::JobPart& part, uint32_t rank) {
  std::string name =
      absl::StrCat("dtrain-", owner, ".", part.job_id(), ".", part.attempt(), ".", rank);
  for (char& c : name) {
    if (!absl::ascii_isalnum(c) && c != '.' && c != '-' && c != '_') c = '_';
  }
  return name;
}

std::vector<std::string> RemoveCommand(const Chosen& chosen,
                                       const std::vector<std::string>& names) {
  if (names.empty() || !KeepsRecords(chosen.runtime)) return {};
  Words words = {chosen.program, "rm", "--force"};
  // Docker says so of containers that are gone, and goes on with the others.
  if (chosen.runtime == Runtime::kPodman) words.emplace_back("--ignore");
  AddAll(words, names);
  return words;
}

}  // namespace dtrain::containers
