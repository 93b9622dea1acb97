// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "agent/shepherd/helper.h"
#include "common/loop/loop.h"
#include "common/os/unique_fd.h"
#include "dtrain/v1/job.pb.h"
#include "dtrain/v1/pmix.pb.h"

namespace dtrain::shepherd {

// The namespace of the job's ranks.
std::string PmixName(const v1::JobPart& part);

// Where a node's ranks find PMIx: a port of 127.0.0.1, and behind it a helper. Loop thread.
class PmixGate {
 public:
  struct Hooks {
    absl::AnyInvocable<void(v1::PmixUp)> up;
    absl::AnyInvocable<void(uint32_t rank, int code)> abort;
    // No rank can use PMIx any more, and some would: what was tried, why it failed, what to do.
    absl::AnyInvocable<void(std::string why, bool ended)> failed;
  };
  // `program`: of the helper, which is called with "pmix". `part` must stay. UNAVAILABLE: there is
  // no 127.0.0.1 here.
  static absl::StatusOr<std::unique_ptr<PmixGate>> Open(loop::Loop& loop, std::string program,
                                                        const v1::JobPart& part, Hooks hooks);

  uint16_t port() const { return port_; }
  // From now on ranks may come. `env` gives a worker's, "NAME=value" each, of which the helper gets
  // what libraries are found by. `folders`: its own is made in the first that takes it.
  using Environment = absl::AnyInvocable<std::vector<std::string>()>;
  void Serve(Environment env, std::vector<std::string> folders);
  void OnDown(const v1::PmixDown& down);
  Helper& helper() { return helper_; }
  // Ends the helper and removes what it has left.
  void End(loop::Task done);

 private:
  PmixGate(loop::Loop& loop, std::string program, const v1::JobPart& part, Hooks hooks,
           os::UniqueFd listener, uint16_t port);
  absl::StatusOr<Helper::Hooks::Beginning> Begin();
  void OnFrame(absl::string_view frame);
  void OnEnded(const std::string& how);
  void Fail(std::string why, bool ended);

  const v1::JobPart& part_;
  Hooks hooks_;
  const uint16_t port_;
  Environment env_;
  std::vector<std::string> folders_;
  std::string folder_;  // the helper's; empty: none yet
  bool used_ = false;   // a rank has connected
  bool failed_ = false;
  int starts_ = 0;
  Helper helper_;
};

}  // namespace dtrain::shepherd
