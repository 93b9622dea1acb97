// SPDX-License-Identifier: Apache-2.0
#include "launcher/transport/ssh_transport.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"
#include "common/loop/threads.h"
#include "launcher/transport/command_transport.h"
#include "launcher/transport/ssh_pump.h"
#include "launcher/transport/ssh_session.h"
#include "launcher/transport/words.h"

namespace dtrain::transport {
namespace {

// sshd starts to refuse at 10 unauthenticated connections; this is across all hosts, and bounds
// the work of this machine.
constexpr int kConnectingAtOnce = 32;
// A connection that was given up ends its thread by itself within half a second, unless it is
// stuck in the network or in an ssh-agent.
constexpr Duration kLeave = std::chrono::milliseconds(800);
constexpr Duration kSevered = std::chrono::seconds(1);

}  // namespace

// Loop thread, all of it but `names`.
struct SshTransport::Crew {
  struct Member {
    explicit Member(loop::Loop& loop) : timer(loop) {}
    std::shared_ptr<SshLink> link;
    loop::Timer timer;  // runs once it was given up
    std::thread thread;
  };
  int connecting = 0;
  std::deque<loop::Task> waiting;
  NameAnswers names;
  std::map<const SshLink*, Member> members;  // those with a thread

  // Joins the thread, which posts nothing more and ends at once. OpenSSL frees a thread's data when
  // the thread ends, and all such data when the process does: these must not overlap.
  void Remove(const SshLink* link) {
    const auto place = members.find(link);
    if (place == members.end()) return;
    if (place->second.thread.joinable()) place->second.thread.join();
    members.erase(place);
  }

  void Next() {
    --connecting;
    while (!waiting.empty() && connecting < kConnectingAtOnce) {
      auto start = std::move(waiting.front());
      waiting.pop_front();
      start();
    }
  }
};

class SshTransport::SshConnection : public Connection, public SshEvents {
 public:
  SshConnection(SshTransport& transport, const Target& target, Callbacks callbacks)
      : transport_(transport),
        target_(target),
        crew_(transport.crew_),
        link_(std::make_shared<SshLink>(transport.loop_)),
        callbacks_(std::move(callbacks)) {
    link_->set_events(this);
  }
  ~SshConnection() override {
    link_->set_events(nullptr);
    // A duplicate of it is gRPC's, so closing alone would end nothing.
    if (stream_) shutdown(stream_.get(), SHUT_RDWR);
    Leave(crew_, link_, /*at_once=*/!stream_);
  }
  absl::Status CloseReason() const override {
    return open_ssh_ == nullptr ? reason_ : open_ssh_->CloseReason();
  }
  const std::shared_ptr<SshLink>& link() const { return link_; }

  void OnPhase(Phase phase) override {
    if (callbacks_.on_phase) callbacks_.on_phase(phase);
  }
  std::string address() const override { return address_; }
  void OnReached(std::string address) override { address_ = std::move(address); }
  void OnReady(os::UniqueFd stream) override {
    stream_.Reset(fcntl(stream.get(), F_DUPFD_CLOEXEC, 3));
    auto on_ready = std::move(callbacks_.on_ready);
    callbacks_ = {};
    on_ready(std::move(stream));
  }
  void OnFailed(absl::Status status) override {
    auto on_failed = std::move(callbacks_.on_failed);
    callbacks_ = {};
    on_failed(std::move(status));
  }
  void OnNeedsOpenSsh(const std::string& why) override {
    if (transport_.options_.on_detail) {
      transport_.options_.on_detail(absl::StrCat(
          Escape(target_.host), " is connected to by OpenSSH's ssh, as libssh cannot do: ", why));
    }
    (*transport_.beyond_)[target_.host] = why;
    open_ssh_ = transport_.open_ssh_->Connect(target_, std::exchange(callbacks_, {}));
  }
  void OnClosed(absl::Status reason) override { reason_ = std::move(reason); }

 private:
  SshTransport& transport_;
  const Target target_;
  std::shared_ptr<Crew> crew_;
  std::shared_ptr<SshLink> link_;
  Callbacks callbacks_;
  std::unique_ptr<Connection> open_ssh_;  // which it is then
  os::UniqueFd stream_;                   // a duplicate, to end the stream with
  std::string address_;
  absl::Status reason_;
};

std::unique_ptr<Transport> MakeOpenSsh(loop::Loop& loop, const SshOptions& options,
                                       AgentBinary& agent,
                                       std::shared_ptr<const BeyondLibssh> beyond) {
  return std::make_unique<CommandTransport>(
      loop,
      [options, beyond = std::move(beyond)](const Target& target) {
        std::string why;
        if (beyond != nullptr && beyond->count(target.host) > 0) why = beyond->at(target.host);
        return OpenSshWords(target, options.config_file, options.port, options.connect_timeout,
                            options.silence, why);
      },
      agent, "ssh");
}

SshTransport::SshTransport(loop::Loop& loop, SshOptions options, AgentBinary& agent)
    : loop_(loop),
      options_(std::move(options)),
      agent_(agent),
      open_ssh_(MakeOpenSsh(loop, options_, agent, beyond_)),
      crew_(std::make_shared<Crew>()) {}

SshTransport::~SshTransport() {
  crew_->waiting.clear();
  TimePoint deadline = Clock::now() + kLeave;
  std::vector<Crew::Member*> stuck;
  for (auto& [key, member] : crew_->members) {
    if (member.link->EndedBy(deadline)) {
      member.thread.join();
    } else {
      member.link->Sever();
      stuck.push_back(&member);
    }
  }
  deadline = Clock::now() + kSevered;
  for (Crew::Member* member : stuck) {
    if (member->link->EndedBy(deadline)) {
      member->thread.join();
    } else {
      member->link->Abandon();
      member->thread.detach();
    }
  }
  crew_->members.clear();
}

std::unique_ptr<Connection> SshTransport::Connect(const Target& target, Callbacks callbacks) {
  agent_.StartLoading();
  auto connection = std::make_unique<SshConnection>(*this, target, std::move(callbacks));
  if (!connection->link()->ok()) {
    SshLink::Post(connection->link(),
                  [](SshEvents& events) { events.OnFailed(PosixError(EMFILE, "connect")); });
    return connection;
  }
  Target to = target;
  if (to.port == 0) to.port = options_.port;
  loop::Task start = [this, link = connection->link(), to] { Start(link, to); };
  if (crew_->connecting < kConnectingAtOnce) {
    start();
  } else {
    crew_->waiting.push_back(std::move(start));
  }
  return connection;
}

void SshTransport::Start(std::shared_ptr<SshLink> link, Target target) {
  if (link->cancelled()) return;
  ++crew_->connecting;
  auto [place, added] = crew_->members.try_emplace(link.get(), loop_);
  place->second.link = link;
  const std::string what = absl::StrCat("connect to ", Escape(target.host));
  auto thread = loop::StartThread(
      what, [link, target = std::move(target), options = options_, &agent = agent_, crew = crew_] {
        SshLink::Post(link, [](SshEvents& events) { events.OnPhase(Phase::kConnecting); });
        SshSession::Request request;
        request.target = target;
        request.config_file = options.config_file;
        request.connect_timeout = options.connect_timeout;
        request.silence = options.silence;
        request.names = &crew->names;
        request.cancel = link->cancel_fd();
        request.socket = &link->socket();
        request.on_authenticating = [&link] {
          SshLink::Post(link, [](SshEvents& events) { events.OnPhase(Phase::kAuthenticating); });
        };
        auto session = SshSession::Open(request);
        SshLink::PostTask(link, [crew] { crew->Next(); });
        if (absl::IsUnimplemented(session.status())) {
          SshLink::Post(link, [why = std::string(session.status().message())](SshEvents& events) {
            events.OnNeedsOpenSsh(why);
          });
        } else if (!session.ok()) {
          SshLink::Post(link, [told = Unshared(session.status())](SshEvents& events) mutable {
            events.OnFailed(std::move(told));
          });
        } else {
          SshLink::Post(link, [address = AddressOf((*session)->socket_fd())](SshEvents& events) {
            events.OnReached(address);
            events.OnPhase(Phase::kLoginShell);
          });
          const AgentBinary::Result& images = agent.Wait();
          if (images.ok()) {
            SshPump(link, **session, *images, agent.order(), BridgeFlag(target)).Run();
          } else {
            SshLink::Post(link, [told = Unshared(images.status())](SshEvents& events) mutable {
              events.OnFailed(std::move(told));
            });
          }
          session->reset();
        }
        link->Sever();  // the duplicate would keep the connection up
        SshLink::PostTask(link, [crew, key = link.get()] { crew->Remove(key); });
        link->SetEnded();
      });
  if (thread.ok()) {
    place->second.thread = *std::move(thread);
    return;
  }
  SshLink::Post(link, [why = thread.status()](SshEvents& events) { events.OnFailed(why); });
  SshLink::PostTask(link, [crew = crew_] { crew->Next(); });
  crew_->members.erase(link.get());
  link->SetEnded();
}

void SshTransport::Leave(const std::shared_ptr<Crew>& crew, const std::shared_ptr<SshLink>& link,
                         bool at_once) {
  link->Cancel();
  auto place = crew->members.find(link.get());
  if (at_once) link->Sever();
  if (at_once || place == crew->members.end()) return;
  place->second.timer.After(kLeave, [link] { link->Sever(); });
}

}  // namespace dtrain::transport
