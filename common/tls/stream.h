// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/loop/loop.h"
#include "common/os/unique_fd.h"
#include "common/tls/certificate.h"
#include "common/tls/context.h"

namespace dtrain::tls {

class Session;

struct Limits {
  std::chrono::milliseconds handshake{5000};
  // How long a peer that we are done with may take nothing of what was sent, and not close.
  std::chrono::milliseconds farewell{5000};
};

// A connection whose peer has proven who it is.
struct Ready {
  os::UniqueFd plain;  // one end of a unix socket pair; the other is pumped to and from the peer
  Certificate peer;
  std::string alpn;  // "h2", "http/1.1"; empty when the peer named none
};

// One TLS connection over a connected TCP socket: the handshake, then bytes both ways between the
// peer and Ready::plain, at the speed of the slower side and with bounded memory. The end of either
// direction goes on to the other side as its end (close_notify, shutdown), while the other
// direction flows on. Loop thread; either callback may destroy it.
class Stream {
 public:
  struct Callbacks {
    // At most once. A server may still refuse a client after the client's on_ready: in TLS 1.3 it
    // checks the certificate last.
    absl::AnyInvocable<void(Ready)> on_ready;
    // Exactly once, last. OK: both sides have ended, or ours has and the peer was told.
    // UNAUTHENTICATED: who is refused and why, "its certificate (gpu01) expired on ...";
    // DEADLINE_EXCEEDED: no handshake in time; UNAVAILABLE: the connection broke.
    absl::AnyInvocable<void(absl::Status why)> on_closed;
  };

  static std::unique_ptr<Stream> Accept(loop::Loop& loop, const Context& server, os::UniqueFd tcp,
                                        Callbacks callbacks, Limits limits = {});

  // `server_name`: the host name or address that the user wrote; the server's certificate must be
  // a node's and name it. `alpn`: the one protocol to speak.
  static std::unique_ptr<Stream> Connect(loop::Loop& loop, const Context& client, os::UniqueFd tcp,
                                         absl::string_view server_name, absl::string_view alpn,
                                         Callbacks callbacks, Limits limits = {});

  // From on_ready at the latest: is shown what the peer sends, before anybody reads it. What it
  // does not like ends the connection, with its words for on_closed.
  void Inspect(absl::AnyInvocable<absl::Status(absl::string_view)> inspector) {
    inspector_ = std::move(inspector);
  }

  // Of a server: the client has begun the handshake, which who only connects does not.
  bool heard() const;

  // Whether `context` still believes the peer of this connection, which has proven who it is: for
  // when another list of revoked certificates is there. UNAUTHENTICATED if not.
  absl::Status CheckAgain(const Context& context) const;

  // Closes both sides at once, without on_closed.
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

 private:
  // Bytes of one direction on their way.
  struct Direction {
    std::unique_ptr<char[]> buffer;
    size_t begin = 0;
    size_t end = 0;
    bool ended = false;  // its source has nothing more
    bool done = false;   // and its sink has been told so
    bool empty() const { return begin == end; }
    void Drop() { begin = end = 0; }
  };

  Stream(loop::Loop& loop, os::UniqueFd tcp, Callbacks callbacks, Limits limits);
  void Begin(absl::StatusOr<std::unique_ptr<Session>> session);
  void Advance();
  void Handshake();
  void OfferPlain();
  void Pump();
  // One thing each; true when something moved, so that the others may go on.
  bool FromPeer();
  bool ToPlain();
  bool FromPlain();
  bool ToPeer();
  void OnPlainGone();
  void AllowFarewell(absl::Status why);
  void WaitForPeer(bool readable);
  void WaitForPlain(bool readable);
  // Lets the peer read what OpenSSL told it, then Close.
  void Fail(absl::Status why);
  void Drain();
  // The last thing done: *this may be gone afterwards.
  void Close(absl::Status why);

  loop::Loop& loop_;
  const Limits limits_;
  Callbacks callbacks_;
  absl::AnyInvocable<absl::Status(absl::string_view)> inspector_;
  os::UniqueFd tcp_;
  os::UniqueFd plain_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<loop::FdWatch> tcp_watch_;
  std::unique_ptr<loop::FdWatch> plain_watch_;
  loop::Timer timer_;
  Direction in_;   // peer to plain
  Direction out_;  // plain to peer
  bool shaken_ = false;
  bool plain_gone_ = false;  // nobody reads or writes Ready::plain any more
  bool armed_[4] = {};       // of the watches: peer to read, to write, plain to read, to write
  size_t drained_ = 0;
  std::optional<absl::Status> over_;  // why it is to be closed
  bool failing_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dtrain::tls
