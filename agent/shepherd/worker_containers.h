// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "agent/containers/client_run.h"
#include "agent/containers/removal.h"
#include "agent/containers/runtime.h"
#include "common/loop/loop.h"
#include "common/os/pidfd.h"
#include "common/os/spawn.h"
#include "common/os/unique_fd.h"
#include "dtrain/v1/job.pb.h"

namespace dtrain::shepherd {

// The containers that a part's workers run in: fetches images before they start, turns a worker's
// spawn into that of the runtime's client, and removes what killed clients leave. Loop thread.
class WorkerContainers {
 public:
  struct Hooks {
    absl::AnyInvocable<void(std::string what)> preparing;  // takes long; empty: no more
    absl::AnyInvocable<void(std::string text)> detail;
  };
  // Whether any worker of the part runs in one.
  static bool Needed(const v1::JobPart& part);

  // `part` and `node_env`, what the node gave its agent, must stay.
  WorkerContainers(loop::Loop& loop, const v1::JobPart& part,
                   const std::vector<std::string>& node_env, Hooks hooks);

  // Chooses the runtimes and has their images on the node. `done`: why that cannot be. It may be
  // called at once.
  using Prepared = absl::AnyInvocable<void(std::optional<v1::NodeFailure> failure)>;
  void Prepare(Prepared done);

  // Null: that program runs in none.
  const containers::Chosen* Of(uint32_t program) const;
  // Makes `run`, complete but for that, the runtime's client. What is returned must stay until it
  // was spawned; `file_fd` is the number of a descriptor that it may take in the client. `folders`:
  // what the container sees of the node's; empty ones do not count.
  absl::StatusOr<os::UniqueFd> Wrap(const v1::WorkerSpec& worker,
                                    const std::vector<std::string>& folders, int file_fd,
                                    os::SpawnSpec* run) const;

  // How the worker ended, by how its client did.
  os::ExitStatus Ended(const v1::WorkerSpec& worker, const os::ExitStatus& client,
                       bool told_to_stop);
  // If it did not even begin, what that means for the job: once.
  std::optional<v1::NodeFailure> WhyNotStarted(const v1::WorkerSpec& worker,
                                               const os::ExitStatus& client,
                                               absl::string_view stderr_tail);

  // Processes beside a container end its records when it ends.
  bool has_monitors() const;
  bool may_be_left() const { return !unsure_.empty(); }
  // Removes those whose clients were killed, failed or were told to stop: they may have left them.
  // `why`: as for containers::Removal.
  void Remove(containers::Removal::Done done);

  // Its own children that run: 0, or one.
  pid_t child() const;
  bool OnChild(pid_t pid);

 private:
  struct Image {
    containers::Chosen chosen;
    bool looked = false;
  };
  std::optional<v1::NodeFailure> Choose();
  void NextImage();
  void Run(std::vector<std::string> argv, Duration limit);
  void RunEnded(const std::vector<std::string>& argv, const containers::ClientRun::End& end);
  void Finish(std::optional<v1::NodeFailure> failure);

  loop::Loop& loop_;
  const v1::JobPart& part_;
  const std::vector<std::string>& node_env_;
  Hooks hooks_;
  std::map<uint32_t, containers::Chosen> chosen_;  // by program
  std::vector<Image> images_;                      // yet to be had, the next at the end
  Prepared prepared_;
  bool told_ = false;  // that it prepares
  std::unique_ptr<containers::ClientRun> run_;
  std::vector<uint32_t> unsure_;  // ranks
  std::unique_ptr<containers::Removal> removal_;
  bool failed_ = false;
};

}  // namespace dtrain::shepherd
