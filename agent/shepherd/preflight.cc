// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/preflight.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <set>
#include <string>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "agent/shepherd/failure.h"
#include "agent/shepherd/script.h"
#include "common/base/exit_code.h"
#include "common/base/programs.h"
#include "common/base/text.h"
#include "common/base/worker_needs.h"
#include "common/os/bounded_look.h"
#include "common/os/fd.h"
#include "common/os/find_program.h"
#include "common/os/scheduling.h"
#include "common/os/unique_fd.h"

namespace dtrain::shepherd {
namespace {

// A file server that fails over takes some seconds.
constexpr std::chrono::seconds kFilesAnswer{10};
// Most jobs do without what is in them.
constexpr std::chrono::seconds kParametersAnswer{1};

// What a program that is named without a folder is, is looked for at its start.
bool AreAtHand(const std::string& directory, const std::string& program) {
  if (!os::IsAtHand(directory + "/.")) return false;
  if (program.find('/') == std::string::npos) return true;
  return os::IsAtHand(program[0] == '/' ? program : absl::StrCat(directory, "/", program));
}

bool Answers(const v1::Program& program) {
  const std::string& directory = program.working_directory();
  if (program.has_container()) {
    // The program is not in the node's files.
    return os::IsAtHand(directory + "/.") ||
           os::ReturnsWithin(kFilesAnswer, [&directory] { (void)access(directory.c_str(), F_OK); });
  }
  if (AreAtHand(directory.empty() ? "." : directory, program.argv(0))) return true;
  return os::ReturnsWithin(kFilesAnswer, [&program, &directory] {
    if (!directory.empty() && chdir(directory.c_str()) != 0) return;
    char first;
    os::UniqueFd file(open(program.argv(0).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (file) (void)!read(file.get(), &first, sizeof(first));
  });
}

// What workers may have of the launcher's limits, and core files.
struct NamedLimit {
  __rlimit_resource resource;
  absl::string_view name;
};
constexpr NamedLimit kLimits[] = {{RLIMIT_CORE, "core files"},
                                  {RLIMIT_MEMLOCK, "locked memory"},
                                  {RLIMIT_NOFILE, "open files"},
                                  {RLIMIT_NPROC, "processes"},
                                  {RLIMIT_STACK, "stack"}};

std::string LimitText(uint64_t limit) {
  return limit == RLIM_INFINITY ? "unlimited" : absl::StrCat(limit);
}

// Of Open MPI's parameters: "btl_tcp_if_exclude = docker0" and the like.
bool NamesNetworks(absl::string_view parameters) {
  for (const absl::string_view line : absl::StrSplit(parameters, '\n')) {
    const absl::string_view name = absl::StripAsciiWhitespace(line.substr(0, line.find('=')));
    if (name == "btl_tcp_if_include" || name == "btl_tcp_if_exclude") return true;
  }
  return false;
}

}  // namespace

std::optional<v1::NodeFailure> CheckResources(const v1::JobPart& part) {
  auto workers = static_cast<rlim_t>(part.workers_size());
  rlim_t files = OpenFilesFor(workers);
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < files) {
    if (limit.rlim_max < files) {
      return MakeFailure(
          v1::NodeFailure::KIND_RESOURCES, kExitStartAgents,
          absl::StrCat("cannot start ", Count(workers, "worker"), ": they need ", files,
                       " open files and the limit is ", limit.rlim_max, "; raise it (ulimit -n)"),
          EMFILE);
    }
    limit.rlim_cur = files;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  getrlimit(RLIMIT_NPROC, &limit);
  if (limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < ProcessesFor(workers)) {
    return MakeFailure(v1::NodeFailure::KIND_RESOURCES, kExitStartAgents,
                       absl::StrCat("cannot start ", Count(workers, "worker"), ": the limit is ",
                                    limit.rlim_cur, " processes; raise it (ulimit -u)"),
                       EAGAIN);
  }
  return std::nullopt;
}

std::optional<v1::NodeFailure> CheckFiles(const v1::JobPart& part) {
  std::set<uint32_t> here;
  for (const v1::WorkerSpec& worker : part.workers()) {
    if (!here.insert(worker.program()).second) continue;
    const v1::Program& program = ProgramOf(part, worker);
    if (Answers(program)) continue;
    return MakeFailure(
        v1::NodeFailure::KIND_SPAWN, kExitStartAgents,
        absl::StrCat("the working directory ", Escape(program.working_directory()),
                     " or the program ", Escape(program.argv(0)), " does not answer within ",
                     kFilesAnswer.count(),
                     " s: is its file server down? Choose another directory with --wdir"));
  }
  return std::nullopt;
}

std::optional<v1::NodeFailure> CheckScripts(const v1::JobPart& part,
                                            const std::vector<std::string>& agent_env) {
  std::set<uint32_t> here;
  for (const v1::WorkerSpec& worker : part.workers()) {
    if (!here.insert(worker.program()).second) continue;
    const v1::Program& program = ProgramOf(part, worker);
    const std::optional<Script> script = ScriptOf(program);
    if (program.has_container() || !script) continue;
    const std::string& directory = program.working_directory();
    const std::string file = os::Joined(directory, script->path);
    if (os::IsAtHand(file)) continue;
    // Of a server that does not answer nothing is known.
    if (!os::ReturnsWithin(kFilesAnswer, [&file] { (void)access(file.c_str(), F_OK); })) continue;
    std::string path;
    for (absl::string_view entry : WorkerEnv(part, agent_env).Of(worker, {})) {
      if (absl::ConsumePrefix(&entry, "PATH=")) path = std::string(entry);
    }
    if (!IsMissing(*script, directory, path)) continue;
    const std::string where = script->path[0] == '/' ? "" : absl::StrCat(" in ", Escape(directory));
    return MakeFailure(
        v1::NodeFailure::KIND_SPAWN, kExitNotFound,
        absl::StrCat("there is no ", Escape(script->path), where, " for ", Escape(program.argv(0)),
                     " to run: the script must exist on every node (--stage "
                     "DIR takes it there)"),
        ENOENT);
  }
  return std::nullopt;
}

bool IsCrowded(const v1::JobPart& part) {
  const size_t processors = os::AllowedCpus().size();
  return processors > 0 && static_cast<size_t>(part.workers_size()) > processors;
}

NodeTraits ReadTraits(const v1::JobPart& part, const std::vector<std::string>& agent_env) {
  NodeTraits traits;
  traits.crowded = IsCrowded(part);
  if (part.node_count() < 2) return traits;
  std::error_code error;
  traits.rdma = std::filesystem::directory_iterator("/sys/class/infiniband", error) !=
                std::filesystem::directory_iterator();
  std::set<std::string> files = {"/etc/openmpi/openmpi-mca-params.conf"};
  for (absl::string_view entry : agent_env) {
    if (absl::ConsumePrefix(&entry, "HOME=")) {
      files.insert(absl::StrCat(entry, "/.openmpi/mca-params.conf"));
    } else if (absl::ConsumePrefix(&entry, "PATH=")) {
      for (absl::string_view folder : absl::StrSplit(entry, ':')) {
        if (!absl::ConsumeSuffix(&folder, "/bin")) continue;
        files.insert(absl::StrCat(folder, "/etc/openmpi-mca-params.conf"));
      }
    }
  }
  const bool answers = os::ReturnsWithin(kParametersAnswer, [&files] {
    for (const std::string& file : files) (void)access(file.c_str(), F_OK);
  });
  if (!answers) return traits;
  for (const std::string& file : files) {
    const absl::StatusOr<std::string> text = os::ReadSmallFile(file);
    traits.names_networks = traits.names_networks || (text.ok() && NamesNetworks(*text));
  }
  return traits;
}

WorkerLimits::WorkerLimits() {
  for (const NamedLimit& each : kLimits) getrlimit(each.resource, &ours_[each.resource]);
}

WorkerLimits::Chosen WorkerLimits::For(const v1::JobPart& part) const {
  std::map<int, rlimit> all = {{RLIMIT_NOFILE, ours_.at(RLIMIT_NOFILE)}};
  std::vector<std::string> lower;
  for (const NamedLimit& each : kLimits) {
    for (const v1::SoftLimit& wanted : part.inherited().limits()) {
      if (wanted.resource() != static_cast<uint32_t>(each.resource)) continue;
      rlimit limit = ours_.at(each.resource);
      if (wanted.exact() || limit.rlim_cur < wanted.soft()) limit.rlim_cur = wanted.soft();
      if (limit.rlim_cur > limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        lower.push_back(
            absl::StrCat(each.name, " ", limit.rlim_max, ", not ", LimitText(wanted.soft())));
      }
      all[each.resource] = limit;
    }
  }
  rlimit core = ours_.at(RLIMIT_CORE);
  core.rlim_cur = part.core_dumps() ? core.rlim_max : 0;
  all[RLIMIT_CORE] = core;
  return {{all.begin(), all.end()}, absl::StrJoin(lower, "; ")};
}

std::string NiceTrouble(int wanted, int nice) {
  if (nice == wanted) return "";
  return absl::StrCat("the ranks run with nice ", nice, ", not ", wanted,
                      " as the launcher does: dtrain's agent may not lower it there");
}

}  // namespace dtrain::shepherd
