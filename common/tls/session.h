// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tls/certificate.h"
#include "common/tls/context.h"
#include "common/tls/openssl.h"
#include "common/tls/reason.h"

namespace dtrain::tls {

// TLS on a borrowed non-blocking socket, without a loop: says what each call waits for.
class Session {
 public:
  enum class Outcome {
    kDone,
    kWantRead,   // call again when the socket is readable
    kWantWrite,  // or writable
    kEnded,      // the peer has said that it sends no more
    kFailed,     // why() tells
  };

  // `server_name` and `alpn` are for the client's side: whom it expects, what it wants to speak.
  static absl::StatusOr<std::unique_ptr<Session>> Make(const Context& context, int fd,
                                                       absl::string_view server_name,
                                                       absl::string_view alpn);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  Outcome Handshake();
  Outcome Read(char* data, size_t size, size_t* done);
  Outcome Write(const char* data, size_t size, size_t* done);
  // Says that nothing more follows (close_notify). The peer may go on to send.
  Outcome TellEnd();

  // The other side has begun the handshake: its first message was whole.
  bool heard() const;
  const absl::Status& why() const { return why_; }
  // After the handshake.
  absl::StatusOr<Certificate> Peer() const;
  std::string alpn() const;
  // Whether `context` still believes the peer, but for the dates of its certificate, which counted
  // when it came. UNAUTHENTICATED, as of a handshake.
  absl::Status CheckAgain(const Context& context) const;

 private:
  Session(UniqueSsl ssl, Side side) : ssl_(std::move(ssl)), side_(side) {}
  static int OnVerify(int good, X509_STORE_CTX* store);
  absl::Status Expect(absl::string_view server_name, absl::string_view alpn);
  Outcome Judge(int result, int error_number);

  const UniqueSsl ssl_;
  const Side side_;
  std::string server_name_;
  std::string wanted_alpn_;
  VerifyFailure verify_;
  bool shaken_ = false;
  absl::Status why_;
};

}  // namespace dtrain::tls
