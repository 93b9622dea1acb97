// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/tls/openssl.h"

// Why TLS was refused, in words.
namespace dtrain::tls {

// What the verification of a chain of certificates found wrong, kept by its callback: OpenSSL has
// forgotten the certificate by the time the handshake has failed.
struct VerifyFailure {
  int error = X509_V_OK;
  std::string about;  // "(gpu01) expired on 2026-11-20 10:00:00 UTC"
};

// For an X509_STORE_CTX that has just found an error. `expected` is the server's name that was
// asked for.
VerifyFailure DescribeVerifyFailure(X509_STORE_CTX* store, absl::string_view expected);

// From OpenSSL's error queue, which it empties, after a call that failed with `ssl_error`
// (SSL_get_error) and errno `error_number`. UNAUTHENTICATED: the peer is refused, or refuses us;
// UNAVAILABLE: the connection broke.
absl::Status WhyItFailed(int ssl_error, int error_number, bool in_handshake,
                         const VerifyFailure& verify);

// The text of the queue's last error, for what is no matter of peers. Empties the queue.
std::string LastError();

}  // namespace dtrain::tls
