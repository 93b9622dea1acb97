// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/os/unique_fd.h"

// Where the launchers of this user leave the sockets that answer for their jobs.
namespace dtrain::status {

// $XDG_RUNTIME_DIR/dtrain, /run/user/UID/dtrain, for root /run/dtrain, or
// ~/.cache/dtrain/run-HOSTNAME: the first whose parent is there and ours to write to. Made with
// mode 0700. Fails when it cannot be made, or is not ours alone.
absl::StatusOr<std::string> RuntimeDirectory();

// "<directory>/<job>.sock"
std::string SocketPath(const std::string& directory, const std::string& job);

struct LiveJob {
  std::string id;
  std::string socket;
  pid_t launcher = 0;  // as the kernel tells of who listens
};

// The jobs whose launcher listens. Sockets of launchers that are gone, which kill -9 leaves, are
// removed, with the token beside them.
std::vector<LiveJob> FindJobs(const std::string& directory);

// In all of the places above: a launcher may have been started with other variables than we were,
// as by cron.
std::vector<LiveJob> FindAllJobs();
// The same without the last place: asks no file server.
std::vector<LiveJob> FindJobsOutsideHome();

}  // namespace dtrain::status
