// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace dtrain::manifest {

inline constexpr size_t kHashBytes = 32;

// SHA-256 of what is added.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void Add(absl::string_view bytes);
  // kHashBytes bytes; it begins again.
  std::string Finish();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

std::string HashOf(absl::string_view bytes);

// HMAC (RFC 2104) with it, kHashBytes bytes: proves that `bytes` come from someone who knows `key`.
std::string HmacSha256(absl::string_view key, absl::string_view bytes);

}  // namespace dtrain::manifest
