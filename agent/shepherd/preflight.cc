// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/preflight.h"

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "agent/shepherd/failure.h"
#include "common/base/exit_code.h"
#include "common/base/text.h"
#include "common/base/worker_needs.h"

namespace dtrain::shepherd {

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

WorkerLimits::WorkerLimits() {
  getrlimit(RLIMIT_NOFILE, &open_files_);
  getrlimit(RLIMIT_CORE, &core_);
}

std::vector<std::pair<int, rlimit>> WorkerLimits::For(const v1::JobPart& part) const {
  rlimit core = core_;
  core.rlim_cur = part.core_dumps() ? core.rlim_max : 0;
  return {{RLIMIT_NOFILE, open_files_}, {RLIMIT_CORE, core}};
}

}  // namespace dtrain::shepherd
