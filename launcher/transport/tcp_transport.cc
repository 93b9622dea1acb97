// SPDX-License-Identifier: Apache-2.0
#include "launcher/transport/tcp_transport.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"
#include "common/os/unique_fd.h"
#include "common/tls/stream.h"
#include "launcher/transport/failed_connection.h"
#include "launcher/transport/ssh_dial.h"

namespace dtrain::transport {
namespace {

// Each waits for one host at a time; most answer within a millisecond.
constexpr int kThreads = 32;
// Where --connect-timeout has run out as the host answered.
constexpr std::chrono::milliseconds kLeastHandshake{1000};
constexpr char kGrpc[] = "h2";

}  // namespace

// One connection. What the pool has of it is shared, as it may outlive us.
class TcpTransport::Link : public Connection {
 public:
  Link(TcpTransport& transport, const Target& target, Callbacks callbacks, os::UniqueFd cancel)
      : transport_(transport),
        target_(target),
        callbacks_(std::move(callbacks)),
        cancel_(std::make_shared<os::UniqueFd>(std::move(cancel))) {
    SshSettings settings;  // of which Dial takes where to go
    settings.host_name = target.host;
    settings.port = target.port != 0 ? target.port : transport.options_.port;
    port_ = settings.port;
    deadline_ = Clock::now() + transport.options_.connect_timeout;
    transport.loop_.Post([this, alive = alive_] {
      if (*alive) callbacks_.on_phase(Phase::kConnecting);
    });
    transport.pool_.Run([this, &loop = transport.loop_, settings, target, deadline = deadline_,
                         cancel = cancel_, alive = alive_] {
      auto dialed = std::make_shared<absl::StatusOr<Dialed>>(
          Dial(settings, target, /*config_file=*/"", deadline, cancel->get()));
      loop.Post([this, dialed, alive] {
        if (*alive) OnDialed(std::move(*dialed));
      });
    });
  }
  ~Link() override {
    *alive_ = false;
    const uint64_t one = 1;
    (void)!write(cancel_->get(), &one, sizeof(one));
  }
  absl::Status CloseReason() const override { return closed_; }

 private:
  void OnDialed(absl::StatusOr<Dialed> dialed) {
    if (!dialed.ok()) {
      if (IsUnknownHost(dialed.status())) return callbacks_.on_failed(dialed.status());
      return callbacks_.on_failed(absl::Status(
          dialed.status().code(),
          absl::StrCat(dialed.status().message(), "; is a resident agent running there, with ",
                       "--listen, on port ", port_, " (--agent-port)?")));
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
      if (!ready_) callbacks_.on_failed(closed_);
    };
    tls::Limits limits;
    limits.handshake = std::max(
        std::chrono::ceil<std::chrono::milliseconds>(deadline_ - Clock::now()), kLeastHandshake);
    stream_ =
        tls::Stream::Connect(transport_.loop_, *transport_.context_, std::move(dialed->socket),
                             target_.host, kGrpc, std::move(callbacks), limits);
  }

  TcpTransport& transport_;
  const Target target_;
  Callbacks callbacks_;
  const std::shared_ptr<os::UniqueFd> cancel_;
  uint16_t port_ = 0;
  TimePoint deadline_;
  bool ready_ = false;
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
    return absl::UnauthenticatedError(absl::StrCat(
        "there is no user.crt in ", Escape(directory), ": get your files from who keeps the ",
        "cluster's authority (dtrain-pki bundle), or name their folder with --tls-dir"));
  }
  if (const std::string crl = directory + "/crl.pem"; access(crl.c_str(), F_OK) == 0) {
    options.tls.crl = crl;
  }
  if (port != 0) options.port = port;
  return options;
}

absl::StatusOr<std::unique_ptr<TcpTransport>> TcpTransport::Make(loop::Loop& loop,
                                                                 const TcpOptions& options) {
  auto context = tls::Context::Load(tls::Side::kClient, options.tls);
  if (!context.ok()) return context.status();
  const tls::Certificate& own = (*context)->own();
  if (own.kind == tls::Kind::kNode) {
    return absl::UnauthenticatedError(
        absl::StrCat(Escape(options.tls.certificate), " is the certificate of the node ",
                     Escape(own.name), ", and nodes ask for nothing: use a user's"));
  }
  return std::unique_ptr<TcpTransport>(new TcpTransport(loop, options, *std::move(context)));
}

TcpTransport::TcpTransport(loop::Loop& loop, const TcpOptions& options,
                           std::shared_ptr<const tls::Context> context)
    : loop_(loop), options_(options), context_(std::move(context)), pool_(kThreads) {}

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
  os::UniqueFd cancel(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!cancel) {
    return std::make_unique<FailedConnection>(loop_, PosixError(errno, "create an eventfd"),
                                              std::move(callbacks));
  }
  return std::make_unique<Link>(*this, target, std::move(callbacks), std::move(cancel));
}

}  // namespace dtrain::transport
