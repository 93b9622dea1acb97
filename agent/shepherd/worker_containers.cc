// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/worker_containers.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "agent/containers/command.h"
#include "agent/containers/ending.h"
#include "agent/containers/environment.h"
#include "agent/containers/look.h"
#include "agent/shepherd/failure.h"
#include "common/base/exit_code.h"
#include "common/base/posix_error.h"
#include "common/base/programs.h"
#include "common/base/text.h"
#include "common/os/bounded_look.h"

namespace dtrain::shepherd {
namespace {

using containers::Chosen;
using containers::Runtime;

// Podman's store may be locked while another job fetches.
constexpr Duration kLookLimit = std::chrono::minutes(5);
// Tens of gigabytes from a registry far away. Clients give up by themselves where nobody answers.
constexpr Duration kFetchLimit = std::chrono::hours(1);
constexpr std::chrono::seconds kMountsAnswer{10};

bool Exists(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0;
}

v1::NodeFailure StartFailure(absl::string_view message, int exit_code = kExitStartAgents) {
  return MakeFailure(v1::NodeFailure::KIND_SPAWN, exit_code, message);
}

// Their places on this node, before anything is started.
std::optional<v1::NodeFailure> CheckMounts(const v1::Container& container) {
  for (const std::string& text : container.mounts()) {
    const std::string source = containers::ParseMount(text).source;
    if (!os::IsAtHand(source) &&
        !os::ReturnsWithin(kMountsAnswer, [&source] { (void)Exists(source); })) {
      return StartFailure(absl::StrCat("cannot mount ", Escape(source), " into the container: it ",
                                       "does not answer within ", kMountsAnswer.count(),
                                       " s: is its file server down?"));
    }
    if (Exists(source)) continue;
    const int reason = errno;
    const absl::Status why = PosixError(
        reason, absl::StrCat("mount ", Escape(source), " into the container (--container-mount)"));
    return StartFailure(
        absl::StrCat("cannot ", std::string(why.message()), "; it must be there on every node"));
  }
  return std::nullopt;
}

absl::StatusOr<os::UniqueFd> MemoryFile(const std::string& text) {
  os::UniqueFd file(memfd_create("dtrain-environment", MFD_CLOEXEC));
  if (!file) return PosixError(errno, "make a file in memory");
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = write(file.get(), text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return PosixError(errno, "write a file in memory");
    done += static_cast<size_t>(n);
  }
  if (lseek(file.get(), 0, SEEK_SET) != 0) return PosixError(errno, "rewind a file in memory");
  return file;
}

rlimit LimitOf(const std::vector<std::pair<int, rlimit>>& limits, int resource) {
  for (const auto& [which, limit] : limits) {
    if (which == resource) return limit;
  }
  rlimit limit{};
  getrlimit(static_cast<__rlimit_resource>(resource), &limit);
  return limit;
}

std::vector<gid_t> OwnGroups() {
  std::vector<gid_t> groups(static_cast<size_t>(std::max(getgroups(0, nullptr), 0)));
  const int n = getgroups(static_cast<int>(groups.size()), groups.data());
  groups.resize(static_cast<size_t>(std::max(n, 0)));
  return groups;
}

}  // namespace

bool WorkerContainers::Needed(const v1::JobPart& part) {
  return std::any_of(part.workers().begin(), part.workers().end(), [&part](const auto& worker) {
    return ProgramOf(part, worker).has_container();
  });
}

WorkerContainers::WorkerContainers(loop::Loop& loop, const v1::JobPart& part,
                                   const std::vector<std::string>& node_env, Hooks hooks)
    : loop_(loop), part_(part), node_env_(node_env), hooks_(std::move(hooks)) {}

std::optional<v1::NodeFailure> WorkerContainers::Choose() {
  std::set<std::pair<std::string, std::string>> images;  // runtime's program, image
  const auto find = containers::FindOnPathOf(node_env_);
  for (const v1::WorkerSpec& worker : part_.workers()) {
    const v1::Program& program = ProgramOf(part_, worker);
    if (!program.has_container() || chosen_.contains(worker.program())) continue;
    auto chosen = containers::Choose(program.container(), find);
    if (!chosen.ok()) {
      return StartFailure(absl::StrCat("cannot ", std::string(chosen.status().message())));
    }
    if (auto refused = CheckMounts(program.container())) return refused;
    if (!containers::CarriesDescriptors(chosen->runtime)) {
      hooks_.detail(absl::StrCat(
          "containers of ", chosen->name, " inherit no descriptors: programs in them have neither ",
          "PMI (MPICH, Slurm's) nor libdtrain; PyTorch and Open MPI work, and podman has all"));
    }
    if (images.insert({chosen->program, chosen->image}).second) images_.push_back({*chosen});
    chosen_.emplace(worker.program(), *std::move(chosen));
  }
  return std::nullopt;
}

void WorkerContainers::Prepare(Prepared done) {
  prepared_ = std::move(done);
  if (auto refused = Choose()) return Finish(std::move(refused));
  NextImage();
}

void WorkerContainers::NextImage() {
  run_.reset();
  if (images_.empty()) return Finish(std::nullopt);
  Image& image = images_.back();
  if (!image.looked) {
    image.looked = true;
    auto look = containers::LookCommand(image.chosen);
    if (!look.empty()) return Run(std::move(look), kLookLimit);
  }
  auto fetch = containers::FetchCommand(image.chosen);
  if (fetch.empty()) {
    images_.pop_back();
    return NextImage();
  }
  told_ = true;
  hooks_.preparing(absl::StrCat("the image ", Escape(image.chosen.image, 200), " (",
                                image.chosen.name, " fetches it)"));
  Run(std::move(fetch), kFetchLimit);
}

void WorkerContainers::Run(std::vector<std::string> argv, Duration limit) {
  auto run = containers::ClientRun::Start(
      loop_, {argv, containers::ClientEnvironment(node_env_), nullptr, limit},
      [this, argv](const containers::ClientRun::End& end) { RunEnded(argv, end); });
  if (!run.ok()) {
    return Finish(StartFailure(absl::StrCat("cannot ", std::string(run.status().message()))));
  }
  run_ = *std::move(run);
}

void WorkerContainers::RunEnded(const std::vector<std::string>& argv,
                                const containers::ClientRun::End& end) {
  const Chosen chosen = images_.back().chosen;
  const bool there = end.status.code == 0 && end.status.signal == 0;
  const bool looked_only = argv == containers::LookCommand(chosen);
  if (there) {
    images_.pop_back();
  } else if (!looked_only || end.late) {
    return Finish(StartFailure(absl::StrCat(
        looked_only ? "cannot tell whether the node has the image " : "cannot fetch the image ",
        Escape(chosen.image, 200), ": ", containers::Describe(argv, end),
        "; is its name right, can the node reach the registry, and is it logged in "
        "there?")));
  }
  NextImage();
}

void WorkerContainers::Finish(std::optional<v1::NodeFailure> failure) {
  run_.reset();
  if (told_) hooks_.preparing("");
  std::exchange(prepared_, nullptr)(std::move(failure));
}

const Chosen* WorkerContainers::Of(uint32_t program) const {
  const auto found = chosen_.find(program);
  return found == chosen_.end() ? nullptr : &found->second;
}

absl::StatusOr<os::UniqueFd> WorkerContainers::Wrap(const v1::WorkerSpec& worker,
                                                    const std::vector<std::string>& folders,
                                                    int file_fd, os::SpawnSpec* run) const {
  const Chosen& chosen = *Of(worker.program());
  const v1::Program& program = ProgramOf(part_, worker);
  std::set<std::string> given(part_.explicit_env().begin(), part_.explicit_env().end());
  given.insert(program.explicit_env().begin(), program.explicit_env().end());
  containers::Needs what;
  what.gpu_uuids.assign(worker.gpu_uuids().begin(), worker.gpu_uuids().end());
  if (!worker.set_visible_gpus()) what.gpu_uuids.clear();
  std::vector<std::string> variables = run->env;
  for (std::string& each : containers::GpuVariables(chosen.runtime, what.gpu_uuids)) {
    variables.push_back(std::move(each));
  }
  for (std::string& each : containers::NamespaceVariables(chosen.runtime)) {
    const std::string name = each.substr(0, each.find('=') + 1);
    const bool set = std::any_of(run->env.begin(), run->env.end(), [&name](const auto& entry) {
      return absl::StartsWith(entry, name);
    });
    if (!set) variables.push_back(std::move(each));
  }
  auto carried = containers::Carry(chosen, variables, node_env_, given);
  if (!carried.ok()) return carried.status();

  what.name = containers::ContainerName(geteuid(), part_, worker.rank());
  what.argv = std::move(run->argv);
  what.variables = std::move(carried->names);
  what.descriptors = static_cast<int>(run->extra_fds.size());
  // One that only the image has can be worked in as well.
  const bool here = run->working_directory != "/" && Exists(run->working_directory);
  what.working_directory = run->working_directory;
  const std::string place = absl::StrCat(run->working_directory, "/");
  const bool is_in_one = std::any_of(folders.begin(), folders.end(), [&](const auto& folder) {
    return !folder.empty() && absl::StartsWith(place, absl::StrCat(folder, "/"));
  });
  if (here && !is_in_one) what.mounts.push_back({run->working_directory, run->working_directory});
  // /dev/shm is the node's in there.
  for (const std::string& folder : folders) {
    if (folder.empty() || absl::StartsWith(folder, "/dev/shm/")) continue;
    what.mounts.push_back({folder, folder});
  }
  for (const std::string& mount : program.container().mounts()) {
    what.mounts.push_back(containers::ParseMount(mount));
  }
  what.options.assign(program.container().options().begin(), program.container().options().end());
  what.devices = containers::NetworkDevices();
  what.has_init = containers::PodmanHasInit();
  what.open_files = LimitOf(run->limits, RLIMIT_NOFILE);
  what.core = LimitOf(run->limits, RLIMIT_CORE);
  what.processes = LimitOf(run->limits, RLIMIT_NPROC);
  const rlim_t most = containers::MostProcesses();
  what.processes.rlim_cur = std::min(what.processes.rlim_cur, most);
  what.processes.rlim_max = std::min(what.processes.rlim_max, most);
  what.uid = geteuid();
  what.gid = getegid();
  what.groups = OwnGroups();
  what.cpulist = worker.cpulist();

  os::UniqueFd file;
  if (!carried->file.empty()) {
    auto made = MemoryFile(carried->file);
    if (!made.ok()) return made.status();
    file = *std::move(made);
    run->extra_fds.emplace_back(file.get(), file_fd);
    what.environment_file = absl::StrCat("/proc/self/fd/", file_fd);
  }
  run->env = std::move(carried->client);
  if (!here) run->working_directory = "/";
  run->argv = containers::RunCommand(chosen, what);
  return file;
}

os::ExitStatus WorkerContainers::Ended(const v1::WorkerSpec& worker, const os::ExitStatus& client,
                                       bool told_to_stop) {
  if (Of(worker.program()) == nullptr) return client;
  // Podman's, told to stop while it sets a container up, exits with 0 and leaves it.
  if (client.signal != 0 || client.code != 0 || told_to_stop) unsure_.push_back(worker.rank());
  return containers::ProgramStatus(client);
}

std::optional<v1::NodeFailure> WorkerContainers::WhyNotStarted(const v1::WorkerSpec& worker,
                                                               const os::ExitStatus& client,
                                                               absl::string_view stderr_tail) {
  const Chosen* chosen = Of(worker.program());
  if (chosen == nullptr || failed_) return std::nullopt;
  const auto why = containers::WhyNotStarted(*chosen, client, stderr_tail);
  if (!why) return std::nullopt;
  failed_ = true;
  return StartFailure(absl::StrCat("cannot run ", Escape(ProgramOf(part_, worker).argv(0), 200),
                                   " in a container of the image ", Escape(chosen->image, 200),
                                   ": ", chosen->name, " says: ", Escape(why->why, 600),
                                   why->exit_code == kExitNotFound
                                       ? "; the program is looked for in the image, and in what "
                                         "--container-mount brings there"
                                       : ""),
                      why->exit_code);
}

bool WorkerContainers::has_monitors() const {
  return std::any_of(chosen_.begin(), chosen_.end(),
                     [](const auto& each) { return each.second.runtime == Runtime::kPodman; });
}

void WorkerContainers::Remove(containers::Removal::Done done) {
  auto left = containers::RemovablesOf(geteuid(), part_, &unsure_);
  if (left.empty()) return done("");
  removal_ = std::make_unique<containers::Removal>(loop_, std::move(left), node_env_, nullptr,
                                                   std::move(done));
}

pid_t WorkerContainers::child() const {
  if (run_) return run_->pid();
  return removal_ ? removal_->pid() : 0;
}

bool WorkerContainers::OnChild(pid_t pid) {
  return (run_ && run_->OnChild(pid)) || (removal_ && removal_->OnChild(pid));
}

}  // namespace dtrain::shepherd
