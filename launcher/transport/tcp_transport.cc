// SPDX-License-Identifier: Apache-2.0
#include "launcher/transport/tcp_transport.h"

#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"
#include "common/log/log.h"
#include "common/os/unique_fd.h"
#include "common/tls/stream.h"
#include "launcher/transport/ssh_dial.h"
#include "launcher/transport/transport.h"

namespace dtrain::transport {
namespace {

// Each waits for one host at a time; most answer within a millisecond.
constexpr size_t kThreads = 32;
// Where --connect-timeout has run out as the host answered.
constexpr std::chrono::milliseconds kLeastHandshake{1000};
constexpr char kGrpc[] = "h2";

}  // namespace

std::string AddressOf(int socket) {
  sockaddr_storage peer = {};
  socklen_t size = sizeof(peer);
  auto* generic = reinterpret_cast<sockaddr*>(&peer);
  char text[INET6_ADDRSTRLEN + IF_NAMESIZE + 1] = "";
  if (getpeername(socket, generic, &size) != 0) return "";
  if (peer.ss_family != AF_INET && peer.ss_family != AF_INET6) return "";
  getnameinfo(generic, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  return text;
}

// A host that is dialed, wanted already or not yet. What the pool has of it is shared, as it may
// outlive us.
class TcpTransport::Call {
 public:
  // Null: no eventfd is to be had.
  static std::shared_ptr<Call> Begin(TcpTransport& transport, const Target& target) {
    auto cancel = std::make_shared<os::UniqueFd>(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!*cancel) return nullptr;
    auto call = std::make_shared<Call>();
    call->cancel_ = cancel;
    call->deadline_ = Clock::now() + transport.options_.connect_timeout;
    SshSettings settings;  // of which Dial takes where to go
    settings.host_name = target.host;
    settings.port = transport.PortOf(target);
    // While a connection is made again names may not be known: then it is where it was.
    const auto reached = transport.reached_.find({target.host, settings.port});
    std::string before;
    if (target.resume && reached != transport.reached_.end()) before = reached->second;
    absl::Status queued = transport.pool_.TryRun(
        [&loop = transport.loop_, &names = transport.names_, settings, target, cancel, before,
         deadline = call->deadline_, weak = std::weak_ptr<Call>(call)]() mutable {
          const TimePoint until =
              before.empty() ? deadline : Clock::now() + (deadline - Clock::now()) / 2;
          auto dialed = std::make_shared<absl::StatusOr<Dialed>>(
              Dial(settings, target, /*config_file=*/"", names, until, cancel->get()));
          if (!dialed->ok() && !before.empty() && !absl::IsCancelled(dialed->status())) {
            settings.host_name = before;
            *dialed = Dial(settings, target, /*config_file=*/"", names, deadline, cancel->get());
          }
          loop.Post([dialed, weak] {
            if (const auto call = weak.lock()) call->Arrived(std::move(*dialed));
          });
        });
    if (!queued.ok()) call->Arrived(std::move(queued));
    return call;
  }
  ~Call() {
    const uint64_t one = 1;
    (void)!write(cancel_->get(), &one, sizeof(one));
  }

  TimePoint deadline() const { return deadline_; }
  // Called once, now or when there is one. It may destroy this.
  using OnResult = absl::AnyInvocable<void(absl::StatusOr<Dialed>)>;
  void Then(OnResult on_result) {
    if (result_.has_value()) return on_result(*std::exchange(result_, std::nullopt));
    on_result_ = std::move(on_result);
  }

 private:
  void Arrived(absl::StatusOr<Dialed> result) {
    if (on_result_) return std::exchange(on_result_, nullptr)(std::move(result));
    result_ = std::move(result);
  }

  std::shared_ptr<os::UniqueFd> cancel_;
  TimePoint deadline_;
  std::optional<absl::StatusOr<Dialed>> result_;
  OnResult on_result_;
};

class TcpTransport::Link : public Connection {
 public:
  Link(TcpTransport& transport, const Target& target, Callbacks callbacks,
       std::shared_ptr<Call> call)
      : transport_(transport),
        target_(target),
        callbacks_(std::move(callbacks)),
        call_(std::move(call)) {
    transport.loop_.Post([this, alive = alive_] {
      if (!*alive) return;
      callbacks_.on_phase(Phase::kConnecting);
      if (*alive)
        call_->Then([this](absl::StatusOr<Dialed> dialed) { OnDialed(std::move(dialed)); });
    });
  }
  ~Link() override { *alive_ = false; }
  absl::Status CloseReason() const override { return closed_; }
  std::string address() const override { return address_; }

 private:
  void OnDialed(absl::StatusOr<Dialed> dialed) {
    if (!dialed.ok()) {
      if (IsUnknownHost(dialed.status()) || absl::IsResourceExhausted(dialed.status())) {
        return callbacks_.on_failed(dialed.status());
      }
      return callbacks_.on_failed(PassingError(
          absl::Status(
              dialed.status().code(),
              absl::StrCat(dialed.status().message(), "; is a resident agent running there, with ",
                           "--listen, on port ", transport_.PortOf(target_), " (--agent-port)?")),
          WhatPasses(dialed.status())));
    }
    AllowSilence(dialed->socket.get());  // a handshake has a limit of its own
    address_ = AddressOf(dialed->socket.get());
    if (!address_.empty()) {
      transport_.reached_[{target_.host, transport_.PortOf(target_)}] = address_;
    }
    callbacks_.on_phase(Phase::kAuthenticating);
    tls::Stream::Callbacks callbacks;
    callbacks.on_ready = [this](tls::Ready ready) {
      ready_ = true;
      callbacks_.on_ready(std::move(ready.plain));
    };
    // With TLS 1.3 a refusal by the agent may come after on_ready.
    callbacks.on_closed = [this](absl::Status why) {
      closed_ = std::move(why);
      if (closed_.ok()) closed_ = absl::UnavailableError("the agent closed it");
      if (absl::IsUnauthenticated(closed_)) closed_ = NotAuthorisedError(closed_.message());
      if (ready_) return;
      // An agent that is being started or stopped; what is wrong with certificates stays.
      const bool passes = absl::IsUnavailable(closed_) || absl::IsDeadlineExceeded(closed_);
      callbacks_.on_failed(PassingError(closed_, passes ? "its agent closes the connection" : ""));
    };
    tls::Limits limits;
    limits.handshake =
        std::max(std::chrono::ceil<std::chrono::milliseconds>(call_->deadline() - Clock::now()),
                 kLeastHandshake);
    stream_ =
        tls::Stream::Connect(transport_.loop_, *transport_.context_, std::move(dialed->socket),
                             target_.host, kGrpc, std::move(callbacks), limits);
  }

  TcpTransport& transport_;
  const Target target_;
  Callbacks callbacks_;
  const std::shared_ptr<Call> call_;
  bool ready_ = false;
  std::string address_;
  absl::Status closed_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::unique_ptr<tls::Stream> stream_;
};

absl::StatusOr<TcpOptions> UserTcpOptions(std::string directory, uint16_t port) {
  const char* home = getenv("HOME");
  if (directory.empty() && home != nullptr) directory = absl::StrCat(home, "/.config/dtrain/tls");
  TcpOptions options;
  options.tls.ca = directory + "/ca.crt";
  options.tls.certificate = directory + "/user.crt";
  options.tls.key = directory + "/user.key";
  if (access(options.tls.certificate.c_str(), F_OK) != 0) {
    return absl::UnauthenticatedError(absl::StrCat("no user.crt in ", Escape(directory),
                                                   ": get your files from the ",
                                                   "cluster's certificate authority (dtrain-pki "
                                                   "bundle), or name their folder with --tls-dir"));
  }
  // One that is there and cannot be read is an error: without it nodes whose keys are lost would be
  // believed again.
  const std::string crl = directory + "/crl.pem";
  struct stat info;
  if (lstat(crl.c_str(), &info) == 0 || errno != ENOENT) {
    options.tls.crl = crl;
  } else {
    log::Warn(absl::StrCat("there is no crl.pem in ", Escape(directory),
                           ": nodes whose certificates were revoked are trusted (docs/pki.md)"));
  }
  if (port != 0) options.port = port;
  return options;
}

absl::StatusOr<std::unique_ptr<TcpTransport>> TcpTransport::Make(loop::Loop& loop,
                                                                 const TcpOptions& options,
                                                                 const std::vector<Target>& hosts) {
  std::unique_ptr<TcpTransport> made(new TcpTransport(loop, options));
  for (const Target& host : hosts) {
    if (made->ahead_.size() == kThreads) break;
    std::shared_ptr<Call> call = Call::Begin(*made, host);
    if (call != nullptr) made->ahead_[{host.host, made->PortOf(host)}] = std::move(call);
  }
  auto context = tls::Context::Load(tls::Side::kClient, options.tls);
  if (!context.ok()) return context.status();
  const tls::Certificate& own = (*context)->own();
  if (own.kind == tls::Kind::kNode) {
    return absl::UnauthenticatedError(
        absl::StrCat(Escape(options.tls.certificate), " is the certificate of the node ",
                     Escape(own.name), ", and nodes start no jobs: use a user's"));
  }
  made->context_ = *std::move(context);
  return made;
}

TcpTransport::TcpTransport(loop::Loop& loop, const TcpOptions& options)
    : loop_(loop), options_(options), pool_(kThreads) {}

uint16_t TcpTransport::PortOf(const Target& target) const {
  return target.port != 0 ? target.port : options_.port;
}

std::unique_ptr<Connection> TcpTransport::Connect(const Target& target, Callbacks callbacks) {
  const std::string& name = context_->own().name;
  if (!target.user.empty() && target.user != name) {
    return std::make_unique<FailedConnection>(
        loop_,
        NotAuthorisedError(absl::StrCat("the certificate is ", Escape(name), "'s, and not user ",
                                        Escape(target.user), "'s: leave the user out, or use the ",
                                        "certificate of that user (--tls-dir)")),
        std::move(callbacks));
  }
  std::shared_ptr<Call> call;
  if (auto ahead = ahead_.extract({target.host, PortOf(target)})) {
    call = std::move(ahead.mapped());
  } else {
    call = Call::Begin(*this, target);
  }
  if (call == nullptr) {
    return std::make_unique<FailedConnection>(loop_, PosixError(errno, "create an eventfd"),
                                              std::move(callbacks));
  }
  return std::make_unique<Link>(*this, target, std::move(callbacks), std::move(call));
}

}  // namespace dtrain::transport
