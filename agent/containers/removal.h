// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "agent/containers/client_run.h"
#include "agent/containers/runtime.h"
#include "common/base/clock.h"
#include "common/loop/loop.h"
#include "dtrain/v1/job.pb.h"

namespace dtrain::containers {

// Containers of one image that may have outlived their clients.
struct Removable {
  v1::Container container;
  std::vector<std::string> names;
};
// Those of a node's part. `ranks`: only theirs; absent: of all workers.
std::vector<Removable> RemovablesOf(uid_t owner, const v1::JobPart& part,
                                    const std::vector<uint32_t>* ranks = nullptr);

// Ends them and removes their records, after the end of the processes that we can end ourselves.
// Loop thread.
class Removal {
 public:
  // `why`: what may be left, and what to do; empty: nothing is. `done` may destroy this.
  using Done = absl::AnyInvocable<void(std::string why)>;
  // A container takes some tenths of a second; a daemon may be down.
  static constexpr Duration kLimit = std::chrono::seconds(20);
  // `user`: as for ClientRun, but to stay until the end. `limit`: of one runtime's command.
  Removal(loop::Loop& loop, std::vector<Removable> what, const std::vector<std::string>& node_env,
          const os::Account* user, Done done, Duration limit = kLimit);

  // 0: none runs.
  pid_t pid() const { return run_ ? run_->pid() : 0; }
  bool OnChild(pid_t pid) { return run_ && run_->OnChild(pid); }

 private:
  void Next();
  void End(const std::vector<std::string>& argv, const ClientRun::End& end);
  void Blame(const std::vector<std::string>& argv, absl::string_view how);

  loop::Loop& loop_;
  std::vector<std::vector<std::string>> todo_;  // commands, the next at the end
  const std::vector<std::string> env_;
  const os::Account* const user_;
  const Duration limit_;
  Done done_;
  std::string why_;
  std::unique_ptr<ClientRun> run_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dtrain::containers
