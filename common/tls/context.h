// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tls/certificate.h"

struct ssl_ctx_st;

namespace dtrain::tls {

enum class Side { kServer, kClient };

// Paths of PEM files, as dtrain-pki makes them. While one authority replaces another, `ca` and
// `crl` hold those of both.
struct Files {
  std::string ca;
  std::string certificate;  // ours; certificates between it and the authority may follow
  std::string key;
  std::string crl;  // what is revoked; empty: nothing is
};

// Ours and the peer's rules for connections: mutual TLS 1.2 or 1.3, certificates of one authority.
// Never changes: what is on the disk now is another Context, and connections keep the one that
// they began with. Any thread.
class Context {
 public:
  // Fails with what is wrong and what to do: a file that is missing or open to others, a key of
  // another certificate, a certificate of another authority, expired, not yet valid, revoked or
  // for the other side.
  static absl::StatusOr<std::shared_ptr<const Context>> Load(Side side, const Files& files);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  Side side() const { return side_; }
  const Certificate& own() const { return own_; }
  ssl_ctx_st* native() const { return native_; }

 private:
  Context(Side side, Certificate own, ssl_ctx_st* native)
      : side_(side), own_(std::move(own)), native_(native) {}

  const Side side_;
  const Certificate own_;
  ssl_ctx_st* const native_;  // owned
};

}  // namespace dtrain::tls
