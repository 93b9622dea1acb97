// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/loop/frame_channel.h"
#include "common/loop/loop.h"
#include "common/os/spawn.h"
#include "common/os/unique_fd.h"
#include "dtrain/v1/job.pb.h"
#include "dtrain/v1/pmix.pb.h"

namespace dtrain::shepherd {

// The number of the descriptors of the PMIx server's process.
inline constexpr int kPmixChannel = 3;
inline constexpr int kPmixListener = 4;

// The namespace of the job's ranks.
std::string PmixName(const v1::JobPart& part);

// Where a node's ranks find PMIx: a port of 127.0.0.1. Its server is a process of its own, started
// when the first of them connects, as most jobs have none that does. Loop thread.
class PmixGate {
 public:
  struct Hooks {
    absl::AnyInvocable<void(v1::PmixUp)> up;
    absl::AnyInvocable<void(uint32_t rank, int code)> abort;
    // No rank can use PMIx any more, and some would: what was tried, why it failed, what to do.
    absl::AnyInvocable<void(std::string why, bool ended)> failed;
  };
  // `program`: of the server, which is called with "pmix". `part` must stay.
  static absl::StatusOr<std::unique_ptr<PmixGate>> Open(loop::Loop& loop, std::string program,
                                                        const v1::JobPart& part, Hooks hooks);
  ~PmixGate();
  PmixGate(const PmixGate&) = delete;
  PmixGate& operator=(const PmixGate&) = delete;

  uint16_t port() const { return port_; }
  // From now on ranks may come. `env` gives a worker's, "NAME=value" each, of which the server gets
  // what libraries are found by. `folders`: its own is made in the first that takes it.
  using Environment = absl::AnyInvocable<std::vector<std::string>()>;
  void Serve(Environment env, std::vector<std::string> folders);
  void OnDown(const v1::PmixDown& down);
  // What the server has said so far, for who is about to tell of the end of a rank.
  void ReadEvents();

  // 0: there is none.
  pid_t pid() const { return child_ ? child_->pid : 0; }
  // This child of ours has ended. False: it is not the server; else it has been reaped.
  bool OnChild(pid_t pid);
  // Ends the server: asks it, for a moment, and kills it. Then `done`, perhaps at once.
  void End(loop::Task done);

 private:
  PmixGate(loop::Loop& loop, std::string program, const v1::JobPart& part, Hooks hooks,
           os::UniqueFd listener, uint16_t port);
  void AwaitClient();
  absl::Status Start();
  void OnFrame(absl::string_view frame);
  void Fail(std::string why, bool ended);

  loop::Loop& loop_;
  const std::string program_;
  const v1::JobPart& part_;
  Hooks hooks_;
  const os::UniqueFd listener_;
  const uint16_t port_;
  loop::FdWatch watch_;
  Environment env_;
  std::vector<std::string> folders_;
  std::string folder_;  // the server's; empty: none yet
  std::optional<os::Child> child_;
  std::unique_ptr<loop::FrameChannel> channel_;
  bool used_ = false;    // a rank has connected
  bool failed_ = false;  // told
  int starts_ = 0;
  loop::Task done_;  // of End
  loop::Timer patience_;
};

}  // namespace dtrain::shepherd
