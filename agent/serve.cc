// SPDX-License-Identifier: Apache-2.0
#include "agent/serve.h"

#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "agent/about.h"
#include "agent/answers/node_answers.h"
#include "agent/config.h"
#include "agent/connections.h"
#include "agent/door.h"
#include "agent/keep.h"
#include "agent/last_crash.h"
#include "agent/reap.h"
#include "agent/resident.h"
#include "agent/session/node_readers.h"
#include "agent/session/sessions.h"
#include "agent/spawn/own_spawner.h"
#include "agent/spawn/remote_spawner.h"
#include "agent/systemd.h"
#include "common/base/exit_code.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"
#include "common/http/server.h"
#include "common/log/log.h"
#include "common/loop/loop.h"
#include "common/loop/signal_sender.h"
#include "common/os/account.h"
#include "common/os/cgroup.h"
#include "common/os/fd.h"
#include "common/os/heap.h"
#include "common/os/kernel.h"
#include "common/os/leave.h"
#include "common/os/private_file.h"
#include "common/os/process_tree.h"
#include "common/os/signals.h"

namespace dtrain::agent {
namespace {

// Of --tls-crl.
constexpr char kNoRevocation[] = "none";
// For launches that have begun, when the agent is told to go; well within a lease.
constexpr Duration kDrainBound = std::chrono::seconds(5);
constexpr Duration kDrainPause = std::chrono::milliseconds(10);
// For jobs that end as this host is to go away. Whoever stops us may not wait for so long.
constexpr Duration kLeaveBound = std::chrono::minutes(15);
// Of a private agent.
constexpr Duration kIdleLimit = std::chrono::minutes(1);
constexpr int kLooksPerIdle = 6;
constexpr uint32_t kMostIdle = 24 * 3600;  // s

// What SIGHUP reads again.
struct Security {
  auth::Policy policy;
  std::shared_ptr<const tls::Context> tls;  // null: nobody comes over TCP
};

absl::StatusOr<Security> ReadSecurity(const Config& config) {
  Security security;
  security.policy.agent_uid = geteuid();
  security.policy.allow_root = config.allow_root;
  if (!config.account_map.empty()) {
    auto text = os::ReadTrustedFile(config.account_map);
    if (!text.ok()) {
      return absl::Status(text.status().code(),
                          absl::StrCat("--account-map: ", text.status().message()));
    }
    auto accounts = auth::AccountMap::Parse(*text);
    if (!accounts.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(config.account_map, ": ", accounts.status().message()));
    }
    security.policy.accounts = *std::move(accounts);
  }
  if (config.listen.empty()) return security;
  tls::Files files = config.tls;
  if (files.crl.empty()) {
    files.crl = files.ca.substr(0, files.ca.rfind('/') + 1) + "crl.pem";
  } else if (files.crl == kNoRevocation) {
    files.crl.clear();
  }
  // Without the list every certificate that was taken back would count again.
  if (!files.crl.empty() && access(files.crl.c_str(), F_OK) != 0 && errno == ENOENT) {
    return absl::NotFoundError(
        absl::StrCat("--listen ", config.listen, ": the list of revoked certificates, ", files.crl,
                     ", is missing: copy the authority's crl.pem there, or say --tls-crl ",
                     kNoRevocation, " where certificates are never revoked (docs/pki.md)"));
  }
  auto context = tls::Context::Load(tls::Side::kServer, files);
  if (!context.ok()) {
    return absl::Status(
        context.status().code(),
        absl::StrCat("--listen ", config.listen, ": ", context.status().message(),
                     "; a node gets its certificate from dtrain-pki (docs/pki.md)"));
  }
  security.tls = *std::move(context);
  return security;
}

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "localhost";
}

// Members in start order, so that they stop in reverse.
class Resident {
 public:
  Resident(loop::Loop& loop, ResidentDirectory directory, const Config& config, Security security,
           Systemd systemd, std::optional<Crash> last_crash)
      : loop_(loop),
        systemd_(std::move(systemd)),
        last_crash_(std::move(last_crash)),
        directory_(std::move(directory)),
        listen_(config.listen),
        status_listen_(config.status_listen),
        readers_(loop),
        is_remote_(!config.spawner.empty()),
        spawner_(MakeSpawner(config)),
        sessions_(loop,
                  session::Identity{rpc::kProtocolVersion, DTRAIN_VERSION, /*resumable=*/true,
                                    /*notice=*/"", std::chrono::seconds(config.launcher_wait_s)},
                  directory_.path(), *spawner_, readers_.readers(), [this] { spawner_->Sweep(); }),
        answers_(HostName(), sessions_.inquiries()),
        connections_(loop, sessions_, answers_) {
    sessions_.inquiries().SetAbout([this] { return About(); });
    Use(std::move(security));
  }

  void Use(Security security) {
    security.policy.for_all = is_remote_;
    connections_.SetPolicy(std::move(security.policy));
    connections_.SetTls(std::move(security.tls));
  }

  // Nobody new is let in. Launches that have begun may still start their jobs, which live on
  // without us, and launchers of held spares hear that we go; `done` when they have, or after some
  // time.
  void Drain(absl::AnyInvocable<void()> done) {
    systemd_.Notify("STOPPING=1");
    tcp_.reset();
    unix_.reset();
    http_unix_.reset();
    http_tcp_.reset();
    drained_ = std::move(done);
    drain_until_ = loop_.Now() + (leaves_ ? kLeaveBound : kDrainBound);
    const bool left = sessions_.LeaveSpares();
    if (leaves_ && sessions_.busy()) {
      log::Info("stopping: waiting for jobs to end");
    } else if (sessions_.starting()) {
      log::Info("stopping: waiting for launches that have begun");
    }
    if (!left) return AwaitStarts();
    // Their launchers hear it over TLS, which this loop has to write first.
    alive_.After(kDrainPause, [this] { AwaitStarts(); });
  }

  // This host is to go away: jobs end, their launchers are told, and no new one is taken.
  void LeaveNode(int signal) {
    log::Warn(absl::StrCat("this host leaves: got ", loop::NameSignal(signal), "; jobs are ended"));
    leaves_ = true;
    sessions_.LeaveNode(absl::StrCat("dtrain there got ", loop::NameSignal(signal)));
  }

  // Whoever comes next finds no agent here, unless it has jobs that wait for the next one.
  void Leave() const {
    if (!sessions_.busy()) directory_.Leave();
  }

  // Calls `done` when nobody has been here for so long.
  void EndWhenIdle(Duration limit, loop::Task done) {
    if (sessions_.busy() || connections_.size() > 0) idle_since_ = loop_.Now();
    if (loop_.Now() >= idle_since_ + limit) return done();
    idle_.After(limit / kLooksPerIdle, [this, limit, done = std::move(done)]() mutable {
      EndWhenIdle(limit, std::move(done));
    });
  }

  // First what is there already, then what comes.
  void Start(absl::AnyInvocable<void(absl::Status)> done) {
    sessions_.AdoptAll([this, done = std::move(done)](absl::Status adopted) mutable {
      if (!adopted.ok()) return done(std::move(adopted));
      // Of jobs of which no agent knows, as those that came by ssh without a resident one. Of users
      // other than ours only root can.
      const Reaped reaped = is_remote_ ? Reaped() : ReapLeftovers();
      for (const Leftover& leftover : reaped.found) {
        log::Warn(absl::StrCat("killing what a dead job has left: ", Describe(leftover)));
      }
      for (const LeftMemory& memory : reaped.memory) {
        log::Warn(absl::StrCat("removing what dead jobs have left: ", Describe(memory)));
      }
      for (const Leftover& leftover : reaped.left) {
        // For two seconds more: somebody may only make them faster than they are ended.
        spawner_->quarantine().Kill(loop_.Now(), leftover.job_id,
                                    {leftover.uid, UserName(leftover.uid)}, {leftover.process});
      }
      spawner_->Sweep();
      absl::Status listening = Listen();
      if (listening.ok()) {
        systemd_.Notify("READY=1");
        KeepAlive();
      }
      done(std::move(listening));
    });
  }

 private:
  std::unique_ptr<spawn::Spawner> MakeSpawner(const Config& config) {
    if (is_remote_) return std::make_unique<spawn::RemoteSpawner>(loop_, config.spawner);
    return std::make_unique<spawn::OwnSpawner>(loop_, spawn::kOwnProgram, [this](uid_t uid) {
      return connections_.accounts().Known(uid);
    });
  }

  // While the loop turns.
  void KeepAlive() {
    if (systemd_.watchdog == Duration::zero()) return;
    systemd_.Notify("WATCHDOG=1");
    alive_.After(systemd_.watchdog, [this] { KeepAlive(); });
  }

  void AwaitStarts() {
    const bool waits =
        sessions_.starting() || sessions_.farewells() > 0 || (leaves_ && sessions_.busy());
    if (!waits || loop_.Now() >= drain_until_) return drained_();
    alive_.After(kDrainPause, [this] { AwaitStarts(); });
  }

  v1::NodeReport About() const {
    v1::NodeReport report = AboutNode();
    report.set_started_unix_nanos(started_unix_nanos_);
    report.set_connections(static_cast<uint32_t>(connections_.size()));
    if (last_crash_) {
      report.set_last_crash(last_crash_->text);
      report.set_last_crash_unix_nanos(last_crash_->unix_nanos);
    }
    return report;
  }

  absl::Status Listen() {
    if (!listen_.empty()) {
      auto listening = ListenTcp(listen_);
      if (!listening.ok()) return listening.status();
      const std::string where = BoundTo(listening->get());
      tcp_.emplace(loop_, *std::move(listening),
                   [this](os::UniqueFd socket, const sockaddr_storage& peer) {
                     connections_.AdmitTcp(std::move(socket), AddressText(peer));
                   });
      log::Info(absl::StrCat("serving with TLS on ", where));
    }
    auto listening = directory_.Listen(std::move(systemd_.fd));
    if (!listening.ok()) return listening.status();
    unix_.emplace(loop_, *std::move(listening), [this](os::UniqueFd socket, const auto&) {
      connections_.AdmitUnix(loop::StrangersSocket(std::move(socket)));
    });
    absl::Status http = ListenHttp();
    // Who waits for this line may ask by any way.
    if (http.ok()) log::Info(absl::StrCat("serving on ", directory_.socket_path()));
    return http;
  }

  absl::Status ListenHttp() {
    auto listening = directory_.ListenHttp(std::move(systemd_.http_fd));
    if (!listening.ok()) return listening.status();
    http_unix_.emplace(loop_, *std::move(listening), [this](os::UniqueFd socket, const auto&) {
      connections_.AdmitHttp(loop::StrangersSocket(std::move(socket)));
    });
    if (status_listen_.empty()) return absl::OkStatus();
    const auto named = [](const absl::Status& why) {
      return absl::Status(why.code(), absl::StrCat("--status-listen: ", why.message()));
    };
    const auto where = http::ParseListening(status_listen_);
    if (!where.ok()) return named(where.status());
    (void)unlink(directory_.token_path().c_str());  // of an agent before us
    auto token = http::WriteToken(directory_.token_path());
    if (!token.ok()) return token.status();
    // Who can read the token can be whoever we are.
    auth::Identity self = OwnIdentity("token");
    self.peer = "loopback";
    auto tcp = http::Server::ListenTcp(loop_, where->ip, where->port, *token,
                                       answers_.HandlerFor(std::move(self)));
    if (!tcp.ok()) return named(tcp.status());
    http_tcp_ = *std::move(tcp);
    log::Info(absl::StrCat("status on http://", http_tcp_->address(), "/v1/node, token in ",
                           directory_.token_path()));
    return absl::OkStatus();
  }

  loop::Loop& loop_;
  Systemd systemd_;
  const std::optional<Crash> last_crash_;
  ResidentDirectory directory_;
  const std::string listen_;
  const std::string status_listen_;
  const int64_t started_unix_nanos_ = absl::GetCurrentTimeNanos();
  session::NodeReaders readers_;
  const bool is_remote_;  // jobs are dtrain-spawner's
  const std::unique_ptr<spawn::Spawner> spawner_;
  session::Sessions sessions_;
  answers::NodeAnswers answers_;
  Connections connections_;
  std::unique_ptr<http::Server> http_tcp_;
  std::optional<Door> http_unix_;
  std::optional<Door> tcp_;
  std::optional<Door> unix_;
  loop::Timer alive_{loop_};
  bool leaves_ = false;  // this host is to go away
  TimePoint drain_until_;
  TimePoint idle_since_ = loop_.Now();
  loop::Timer idle_{loop_};
  absl::AnyInvocable<void()> drained_;
};

int Fail(const absl::Status& status, int code) {
  log::Error(status.message());
  // Whatever it is: something that others can change, or that we may not do.
  return absl::IsPermissionDenied(status) ? kExitNotAuthorised : code;
}

int Serve(const std::vector<std::string>& words, Config config, Security security, Systemd systemd,
          std::string state_directory, bool for_all, Duration idle_limit) {
  auto directory = ResidentDirectory::Hold(std::move(state_directory), for_all);
  if (!directory.ok()) return Fail(directory.status(), kExitState);
  std::optional<Crash> last_crash = WatchForCrashes(directory->path());
  loop::Loop loop;
  int exit_code = kExitOk;
  Resident resident(loop, *std::move(directory), config, std::move(security), std::move(systemd),
                    std::move(last_crash));
  const bool is_private = idle_limit != Duration::max();
  bool told_to_end = false;
  loop::SignalWatch signals(loop, {SIGTERM, SIGINT, SIGHUP, SIGUSR1}, [&](int signal) {
    if (signal == SIGUSR1) return resident.LeaveNode(signal);
    if (signal != SIGHUP) {
      // Who says it twice does not want to wait.
      if (std::exchange(told_to_end, true)) return loop.Stop();
      // Nobody starts a private one again: it ends with its host, or its user's sessions there.
      if (is_private) resident.LeaveNode(signal);
      return resident.Drain([&loop] { loop.Stop(); });
    }
    auto anew = ParseConfig(words);
    auto read = anew.ok() ? ReadSecurity(*anew) : anew.status();
    if (read.ok()) {
      resident.Use(*std::move(read));
      log::Info("configuration and certificates were reloaded");
    } else {
      log::Error(
          absl::StrCat("cannot reload, keeping the old configuration: ", read.status().message()));
    }
  });
  resident.Start([&](absl::Status status) {
    if (status.ok()) return;
    exit_code = Fail(status, absl::IsInvalidArgument(status) ? kExitUsage : kExitState);
    loop.Stop();
  });
  if (is_private) resident.EndWhenIdle(idle_limit, [&loop] { loop.Stop(); });
  loop.Run();
  resident.Leave();
  // Shepherds see their socket close and wait for the next agent.
  os::Leave(exit_code);
}

}  // namespace

int RunServe(const std::vector<std::string>& words) {
  os::FailWritesWithoutSignals();
  os::KeepHeapSmall();
  os::ReuseBuffers();
  Systemd systemd = Systemd::Take();
  auto config = ParseConfig(words);
  if (!config.ok()) return Fail(config.status(), kExitUsage);
  if (const std::string old = os::KernelTooOld(); !old.empty()) {
    return Fail(absl::FailedPreconditionError(old), kExitStartAgents);
  }
  auto security = ReadSecurity(*config);
  if (!security.ok()) return Fail(security.status(), kExitNotAuthorised);
  const bool is_root = geteuid() == 0;
  if (!config->spawner.empty() && is_root) {
    return Fail(
        absl::InvalidArgumentError(
            "--spawner: this agent is root, and dtrain-spawner is there so that it need not "
            "be: run it as the user that dtrain-spawner serves (--agent-user), or without "
            "--spawner"),
        kExitUsage);
  }
  if (config->check) return kExitOk;
  const bool for_all = is_root || !config->spawner.empty();
  std::string directory =
      config->state_directory.empty() ? DefaultStateDirectory(for_all) : config->state_directory;
  return Serve(words, *std::move(config), *std::move(security), std::move(systemd),
               std::move(directory), for_all, /*idle_limit=*/Duration::max());
}

int RunKeep(const std::vector<std::string>& words) {
  os::FailWritesWithoutSignals();
  os::KeepHeapSmall();
  os::ReuseBuffers();
  uint32_t idle_s = std::chrono::duration_cast<std::chrono::seconds>(kIdleLimit).count();
  if (!words.empty() &&
      (words.size() != 2 || words[0] != "--idle" || !absl::SimpleAtoi(words[1], &idle_s) ||
       idle_s == 0 || idle_s > kMostIdle)) {
    return Fail(absl::InvalidArgumentError("keep takes --idle SECONDS, up to a day, and no more"),
                kExitUsage);
  }
  Config config;
  auto security = ReadSecurity(config);
  if (!security.ok()) return Fail(security.status(), kExitNotAuthorised);
  auto directory = KeepDirectory();
  if (!directory.ok()) return Fail(directory.status(), kExitState);
  return Serve({}, std::move(config), *std::move(security), Systemd(), *std::move(directory),
               /*for_all=*/false, std::chrono::seconds(idle_s));
}

}  // namespace dtrain::agent
