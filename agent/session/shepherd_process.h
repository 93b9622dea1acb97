// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "agent/session/shepherd_words.h"
#include "common/base/clock.h"
#include "common/loop/frame_channel.h"
#include "common/os/spawn.h"
#include "dtrain/v1/shepherd.pb.h"

namespace dtrain::session {

// Where a shepherd finds its end of the socket.
inline constexpr int kShepherdSocket = 3;

// The agent's end of one shepherd: starts it, speaks to it, notices its end. Loop thread.
//
// It is spawned before any job is known, so that its start overlaps the launcher's; destroying
// this closes the socket, at which a shepherd ends its workers and itself. One that does not, as
// its user has stopped it, is killed after its patience.
class ShepherdProcess {
 public:
  using OnEvent = absl::AnyInvocable<void(v1::ShepherdEvent event, os::UniqueFd fd)>;
  using OnGone = absl::AnyInvocable<void(std::string why)>;

  // `program` is this agent's own file, run as `<program> shepherd` with the socket as fd 3; `user`
  // (may be null: as ourselves) is whom it and the workers run as; `cgroup` (may be empty: ours) is
  // a directory that this user may use, for it and them.
  static absl::StatusOr<std::unique_ptr<ShepherdProcess>> Start(loop::Loop& loop,
                                                                const std::string& program,
                                                                const os::Account* user = nullptr,
                                                                const std::string& cgroup = "");
  // One that an agent before us has started and told to keep running: `socket` is connected to
  // it, `pidfd` names it. Its first event is its Account.
  static std::unique_ptr<ShepherdProcess> Adopt(loop::Loop& loop, os::Child process,
                                                os::UniqueFd socket, const std::string& cgroup);
  ~ShepherdProcess();
  ShepherdProcess(const ShepherdProcess&) = delete;
  ShepherdProcess& operator=(const ShepherdProcess&) = delete;

  // Tells once whether it runs: at once as ourselves; for another user, who may hold its start up,
  // later, and for no longer than a few seconds. If it does not run, destroy this.
  using OnStarted = absl::AnyInvocable<void(absl::Status)>;
  void WhenStarted(OnStarted done);
  // From now on events are handed over; what came before is kept for it. Again: to others.
  void Listen(OnEvent on_event, OnGone on_gone);
  // RESOURCE_EXHAUSTED: it is too long, and was not sent.
  absl::Status Send(const v1::ShepherdRequest& request, int fd = -1);
  pid_t pid() const { return child_.pid; }
  // Whom it runs as; null: as ourselves, or not known, as it was adopted.
  const os::Account* user() const { return user_ ? &*user_ : nullptr; }
  // With the pid, names it for good.
  uint64_t start_time() const { return start_time_; }
  // The cgroup that it is in, where it makes the job's; empty when it has none to itself.
  const std::string& cgroup() const { return cgroup_; }
  // Its process has ended and was reaped.
  bool ended() const { return ended_; }
  // Calls `done` once its process has ended.
  void WhenEnded(loop::Task done);
  // Kills it with all in its cgroup.
  void Kill();
  // Kills it likewise: it did what no shepherd of ours does. Its listener hears that it is gone.
  void Break(std::string why);
  // For how long it may end its workers and itself, once this is destroyed.
  void set_patience(Duration patience) { patience_ = patience; }
  // Held until its process has ended, also when this is destroyed before.
  void set_presence(std::shared_ptr<const bool> presence) { presence_ = std::move(presence); }

 private:
  ShepherdProcess(loop::Loop& loop, os::Child child, os::UniqueFd socket, bool is_child,
                  std::string cgroup);
  struct Beginning;
  void Reported();
  void Gone(std::string why);
  void Reap();

  loop::Loop& loop_;
  os::Child child_;
  std::optional<os::Account> user_;
  const uint64_t start_time_;  // taken while the pid was its own for sure
  const bool is_child_;
  const std::string cgroup_;
  std::unique_ptr<loop::FdWatch> exit_watch_;
  std::unique_ptr<Beginning> beginning_;  // until it runs
  std::unique_ptr<ShepherdWords> words_;  // of another user's, which we have started
  std::unique_ptr<loop::FrameChannel> channel_;
  OnEvent on_event_;
  OnGone on_gone_;
  std::string gone_why_;  // until Listen
  Duration patience_;
  std::shared_ptr<const bool> presence_;
  bool gone_ = false;
  bool ended_ = false;
  std::string how_ended_;
  loop::Task when_ended_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dtrain::session
