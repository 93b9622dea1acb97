// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/run_shepherd.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include <string>
#include <utility>
#include <variant>

#include "agent/shepherd/order.h"
#include "agent/shepherd/shepherd.h"
#include "common/base/exit_code.h"
#include "common/log/log.h"
#include "common/loop/loop.h"
#include "common/os/fd.h"
#include "common/os/process_tree.h"
#include "common/os/signals.h"

namespace dtrain::shepherd {
namespace {

constexpr size_t kMostOfOrder = 4096;

bool Listens(int fd) {
  int listens = 0;
  socklen_t size = sizeof(listens);
  return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens != 0;
}

absl::StatusOr<AgentLine::Door> ReadDoor(os::UniqueFd listening, os::UniqueFd said) {
  auto text = os::ReadToEnd(said.get(), "the order of dtrain-spawner", kMostOfOrder);
  if (!text.ok()) return text.status();
  auto order = ParseOrder(*text);
  if (!order.ok()) return order.status();
  if (absl::Status set = os::SetNonBlocking(listening.get(), true); !set.ok()) return set;
  return AgentLine::Door{std::move(listening), order->agent_uid, order->lease};
}

}  // namespace

int RunShepherd(int socket_fd, std::string agent, const ShepherdLimits& limits) {
  fcntl(socket_fd, F_SETFD, FD_CLOEXEC);
  os::UniqueFd socket(socket_fd);
  os::FailWritesWithoutSignals();
  signal(SIGUSR1, SIG_IGN);  // until they are watched
  signal(SIGUSR2, SIG_IGN);
  prctl(PR_SET_NAME, "dtrain-shepherd");  // else "exe", in ps, top and at a shutdown
  absl::Status subreaper = os::BecomeSubreaper();
  if (!subreaper.ok()) log::Warn(std::string(subreaper.message()));
  loop::Loop loop;
  Shepherd::Agent way = std::move(socket);
  if (Listens(socket_fd)) {
    auto door = ReadDoor(std::move(std::get<os::UniqueFd>(way)), os::UniqueFd(socket_fd + 1));
    if (!door.ok()) {
      log::Error(door.status().message());
      return kExitUsage;
    }
    way = *std::move(door);
  }
  Shepherd shepherd(loop, std::move(agent), std::move(way), limits);
  loop.Run();
  // All is over: a signal that comes now must not make it look like a death.
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, nullptr);
  return 0;
}

}  // namespace dtrain::shepherd
