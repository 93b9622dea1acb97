// SPDX-License-Identifier: Apache-2.0
#include "agent/serve.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/node_readers.h"
#include "agent/resident.h"
#include "agent/session/agent_service.h"
#include "agent/session/sessions.h"
#include "common/base/exit_code.h"
#include "common/log/log.h"
#include "common/loop/loop.h"
#include "common/loop/threads.h"
#include "common/os/account.h"
#include "common/os/cgroup.h"
#include "common/os/credentials.h"
#include "common/rpc/channel.h"

namespace dtrain::agent {
namespace {

constexpr char kOwnProgram[] = "/proc/self/exe";
// Of one user. A launcher has one connection per node, so this is as many jobs at a time.
constexpr ptrdiff_t kMostConnections = 128;
// After accept failed for lack of descriptors: others may close some.
constexpr Duration kAcceptPause = std::chrono::milliseconds(200);

// Members in start order, so that they stop in reverse.
class Resident {
 public:
  Resident(loop::Loop& loop, ResidentDirectory directory)
      : loop_(loop),
        directory_(std::move(directory)),
        readers_(loop),
        sessions_(
            loop, session::Identity{rpc::kProtocolVersion, DTRAIN_VERSION, /*resumable=*/true},
            directory_.path(),
            [this](const session::Owner& owner, const v1::Hello& hello) {
              return StartShepherd(owner, hello);
            },
            readers_.readers(), [this] { RemoveCgroups(); }),
        accept_pause_(loop) {}

  // First what is there already, then what comes.
  void Start(absl::AnyInvocable<void(absl::Status)> done) {
    sessions_.AdoptAll([this, done = std::move(done)]() mutable {
      RemoveCgroups();
      auto listening = directory_.Listen();
      if (!listening.ok()) return done(listening.status());
      listening_ = *std::move(listening);
      accept_.emplace(loop_, listening_.get());
      AwaitConnection();
      log::Info(absl::StrCat("serving on ", directory_.socket_path()));
      done(absl::OkStatus());
    });
  }

 private:
  // One peer. gRPC works on the socket; a duplicate tells when the peer has gone.
  struct Connection {
    Connection(loop::Loop& loop, session::Sessions& sessions, session::Owner who,
               os::UniqueFd socket)
        : peer(who),
          watched(fcntl(socket.get(), F_DUPFD_CLOEXEC, 0)),
          hangup(std::make_unique<loop::FdWatch>(loop, watched.get())),
          service(loop, sessions, peer),
          server(std::make_unique<rpc::StreamServer>(service, std::move(socket))) {}
    const session::Owner peer;
    os::UniqueFd watched;
    std::unique_ptr<loop::FdWatch> hangup;
    session::AgentService service;
    std::unique_ptr<rpc::StreamServer> server;
  };

  void AwaitConnection() {
    accept_->OnReadable([this] { Accept(); });
  }

  void Accept() {
    os::UniqueFd socket(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket && errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
      log::Error(absl::StrCat("cannot take a connection: ", strerror(errno)));
      accept_pause_.After(kAcceptPause, [this] { AwaitConnection(); });
      return;
    }
    AwaitConnection();
    if (socket) Admit(std::move(socket));
  }

  void Admit(os::UniqueFd socket) {
    auto peer = os::PeerOf(socket.get());
    if (!peer.ok()) return log::Error(peer.status().message());
    if (geteuid() != 0 && peer->uid != geteuid()) {
      log::Warn(absl::StrCat("user ", peer->uid, " was refused: this agent serves only user ",
                             geteuid()));
      return;
    }
    const ptrdiff_t open =
        std::count_if(connections_.begin(), connections_.end(),
                      [&](const auto& other) { return other->peer.uid == peer->uid; });
    if (open >= kMostConnections) {
      log::Warn(absl::StrCat("a connection of user ", peer->uid, " was refused: it has ", open));
      return;
    }
    auto place = connections_.insert(connections_.end(), nullptr);
    *place = std::make_unique<Connection>(loop_, sessions_, session::Owner{peer->uid},
                                          std::move(socket));
    (*place)->hangup->OnHangup([this, place] { Close(place); });
  }

  void Close(std::list<std::unique_ptr<Connection>>::iterator place) {
    (*place)->hangup.reset();
    // gRPC's shutdown waits for its threads, and these may wait for our loop.
    closing_.Run([connection = std::shared_ptr<Connection>(std::move(*place))] {
      connection->server.reset();
    });
    connections_.erase(place);
  }

  absl::StatusOr<std::unique_ptr<session::ShepherdProcess>> StartShepherd(
      const session::Owner& owner, const v1::Hello& hello) {
    auto account = os::FindAccount(owner.uid);
    if (!account.ok()) return account.status();
    const std::string cgroup = MakeCgroup(*account, hello);
    return session::ShepherdProcess::Start(loop_, kOwnProgram, geteuid() == 0 ? &*account : nullptr,
                                           cgroup);
  }

  // For the shepherd and its workers; empty when there can be none, of which the shepherd warns.
  std::string MakeCgroup(const os::Account& account, const v1::Hello& hello) {
    auto parent = os::FindWritableCgroup();
    if (!parent.ok() || !session::IsPlainJobId(hello.job_id())) return "";
    auto made =
        os::Cgroup::Make(*parent, session::ShepherdCgroupName(hello.job_id(), hello.attempt()));
    if (!made.ok()) return "";
    if (absl::Status given = made->GiveTo(account.uid, account.gid); !given.ok()) {
      log::Warn(given.message());
      made->Remove().IgnoreError();
      return "";
    }
    return made->path();
  }

  // Those that are empty. A shepherd leaves its own a moment after its session ended.
  void RemoveCgroups() {
    auto parent = os::FindWritableCgroup();
    if (!parent.ok()) return;
    bool left = false;
    for (const os::Cgroup& cgroup : os::Cgroup::Below(*parent, session::kShepherdCgroupPrefix)) {
      if (cgroup.Populated() || !cgroup.Remove().ok()) left = true;
    }
    if (left && !sessions_.busy()) {
      sweep_.After(std::chrono::milliseconds(100), [this] { RemoveCgroups(); });
    }
  }

  loop::Loop& loop_;
  ResidentDirectory directory_;
  NodeReaders readers_;
  loop::BlockingPool closing_{1};
  session::Sessions sessions_;
  os::UniqueFd listening_;
  std::optional<loop::FdWatch> accept_;
  loop::Timer accept_pause_;
  loop::Timer sweep_{loop_};
  std::list<std::unique_ptr<Connection>> connections_;
};

int Fail(const absl::Status& status, int code) {
  log::Error(status.message());
  return code;
}

}  // namespace

int RunServe(const ServeOptions& options) {
  signal(SIGPIPE, SIG_IGN);
  auto directory = ResidentDirectory::Hold(
      options.state_directory.empty() ? DefaultStateDirectory() : options.state_directory);
  if (!directory.ok()) return Fail(directory.status(), kExitState);
  loop::Loop loop;
  int exit_code = kExitOk;
  Resident resident(loop, *std::move(directory));
  loop::SignalWatch signals(loop, {SIGTERM, SIGINT}, [&](int) { loop.Stop(); });
  resident.Start([&](absl::Status status) {
    if (status.ok()) return;
    exit_code = Fail(status, kExitState);
    loop.Stop();
  });
  loop.Run();
  // Not by way of the destructors: gRPC's shutdown may wait ten seconds for a poller of its own.
  // Shepherds see their socket close and wait for the next agent.
  _exit(exit_code);
}

}  // namespace dtrain::agent
