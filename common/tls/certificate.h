// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

struct x509_st;

namespace dtrain::tls {

// What the URI in a certificate's SAN makes its holder, dtrain:KIND:NAME.
enum class Kind { kNode, kUser, kAdmin, kObserver };

absl::string_view KindName(Kind kind);  // "node", "user", "admin", "observer"

struct Certificate {
  Kind kind = Kind::kObserver;
  std::string name;                    // gpu01, alice
  std::string common_name;             // of the subject; says nothing about rights
  std::vector<std::string> dns_names;  // SAN, as are the two below
  std::vector<std::string> addresses;
  std::vector<std::string> uris;
  std::string serial;  // upper-case hex, as dtrain-pki list shows it
  absl::Time not_before;
  absl::Time not_after;
};

// Fails for a certificate that does not say, or says twice, what its holder is, and for names with
// bytes that no name has. What it says is true only if the certificate was verified.
absl::StatusOr<Certificate> ReadCertificate(const x509_st* x509);

// Whatever of it can be read, to tell what was refused. Its kind means nothing.
Certificate ReadForMessage(const x509_st* x509);

}  // namespace dtrain::tls
