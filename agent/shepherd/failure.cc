// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/failure.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "agent/shepherd/shepherd_core.h"
#include "common/base/exit_code.h"
#include "common/base/text.h"
#include "common/os/find_program.h"
#include "common/os/unique_fd.h"

namespace dtrain::shepherd {
namespace {

using os::SpawnStage;

// The kernel takes no single argument or variable above this (MAX_ARG_STRLEN).
constexpr size_t kLongestString = 128 << 10;

std::string TooBigHint(const v1::JobPart& part, const v1::Program& program) {
  size_t total = 0;
  const v1::EnvVar* longest = nullptr;
  for (const auto* vars : {&part.env(), &program.env()}) {
    for (const v1::EnvVar& var : *vars) {
      size_t size = var.name().size() + var.value().size() + 2;
      total += size;
      if (size > kLongestString &&
          (longest == nullptr || var.value().size() > longest->value().size())) {
        longest = &var;
      }
    }
  }
  if (longest != nullptr) {
    return absl::StrCat("the variable ", Escape(longest->name()), " has ", longest->value().size(),
                        " bytes, and the system takes ", kLongestString, " at most");
  }
  for (const std::string& argument : program.argv()) total += argument.size() + 1;
  return absl::StrCat("arguments and environment have ", total,
                      " bytes; pass less, for example with --env none and -x");
}

// People who come from mpirun or a shell forget the interpreter or the "./".
std::string ProgramHint(const v1::Program& run, const os::SpawnError& error) {
  const std::string& program = run.argv(0);
  const bool is_python = absl::EndsWith(program, ".py");
  const std::string interpreted = absl::StrCat("did you mean `python3 ", Escape(program), "`?");
  if (error.error_number == EISDIR) return "it is a directory";
  if (error.error_number != ENOENT) {
    return absl::StrCat("the file must be executable (chmod +x)",
                        is_python ? absl::StrCat("; ", interpreted) : "");
  }
  if (program.find('/') == std::string::npos) {
    if (is_python) return interpreted;
    struct stat info {};
    const std::string here = os::Joined(run.working_directory(), program);
    if (stat(here.c_str(), &info) == 0 && S_ISREG(info.st_mode)) {
      return absl::StrCat("it is in the working directory: did you mean `./", Escape(program),
                          "`?");
    }
  }
  return "the program must exist on every node; give its full path or correct PATH";
}

std::string FirstLineHint(const v1::Program& run) {
  const os::UniqueFd file(open(os::Joined(run.working_directory(), run.argv(0)).c_str(),
                               O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  char text[256];  // as much as the kernel reads
  const ssize_t n = read(file.get(), text, sizeof(text));
  const absl::string_view begin(text, n > 0 ? static_cast<size_t>(n) : 0);
  if (!absl::EndsWith(begin.substr(0, begin.find('\n')), "\r"))
    return "install the interpreter, or correct the first line";
  return "its first line ends in a carriage return, as lines of Windows do: run dos2unix on it";
}

std::string Hint(const v1::JobPart& part, const v1::Program& program, const os::SpawnError& error) {
  switch (error.error_number) {
    case E2BIG:
      return TooBigHint(part, program);
    case ETXTBSY:
      return "the file is being written; start the job when that is done";
    case EAGAIN:
      return "the limit of processes is reached; see ulimit -u and the cgroup's pids.max";
    case ENOMEM:
      return "the node is out of memory";
    case EMFILE:
    case ENFILE:
      return "raise the limit of open files (ulimit -n)";
    default:
      break;
  }
  switch (error.stage) {
    case SpawnStage::kWorkingDirectory:
      return "the directory must exist on every node; choose another with --wdir";
    case SpawnStage::kProgram:
      return ProgramHint(program, error);
    case SpawnStage::kExec:
      if (error.error_number != ENOENT) return "it must be an executable for this machine";
      return FirstLineHint(program);
    case SpawnStage::kAffinity:
      return "use --bind none";
    default:
      return "";
  }
}

}  // namespace

v1::NodeFailure MakeFailure(v1::NodeFailure::Kind kind, int exit_code, absl::string_view message,
                            int error_number) {
  v1::NodeFailure failure;
  failure.set_kind(kind);
  failure.set_exit_code(exit_code);
  failure.set_message(std::string(message));
  failure.set_error_number(error_number);
  return failure;
}

v1::NodeFailure SpawnFailure(const v1::JobPart& part, const v1::Program& program,
                             const os::SpawnError& error, const absl::Status& status) {
  int e = error.error_number;
  auto kind = v1::NodeFailure::KIND_SPAWN;
  int exit_code = kExitStartAgents;
  if (error.stage == SpawnStage::kWorkingDirectory) {
    exit_code = kExitNotFound;
  } else if (error.stage == SpawnStage::kProgram) {
    exit_code = e == ENOENT || e == ENOTDIR ? kExitNotFound : kExitNotExecutable;
  } else if (error.stage == SpawnStage::kExec) {
    exit_code = kExitNotExecutable;
  } else if (e == EAGAIN || e == ENOMEM || e == EMFILE || e == ENFILE) {
    kind = v1::NodeFailure::KIND_RESOURCES;
  }
  std::string hint = Hint(part, program, error);
  return MakeFailure(
      kind, exit_code,
      absl::StrCat("cannot ", absl::string_view(status.message()), hint.empty() ? "" : "; ", hint),
      e);
}

v1::NodeFailure CannotStart(const absl::Status& status) {
  return MakeFailure(v1::NodeFailure::KIND_RESOURCES, kExitStartAgents,
                     absl::StrCat("cannot ", absl::string_view(status.message())));
}

v1::NodeFailure UnkillableFailure(absl::string_view who) {
  return MakeFailure(
      v1::NodeFailure::KIND_CLEANUP, kExitCleanup,
      absl::StrCat("could not end leftover processes of the job: ", who, " still there ",
                   std::chrono::duration_cast<std::chrono::seconds>(kUnkillableAfter).count(),
                   " s after SIGKILL; a driver or a network file system holds it, the node may "
                   "need a reboot"));
}

}  // namespace dtrain::shepherd
