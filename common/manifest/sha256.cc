// SPDX-License-Identifier: Apache-2.0
#include "common/manifest/sha256.h"

// Not by EVP: that initialises all of OpenSSL, and is 4 MB in a program that has nothing else of
// it, as the shepherd.
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/sha.h>

#include "common/base/check.h"

namespace dtrain::manifest {

static_assert(kHashBytes == SHA256_DIGEST_LENGTH);

struct Sha256::Context {
  SHA256_CTX hash;
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  DTRAIN_CHECK(SHA256_Init(&context_->hash) == 1);
}

Sha256::~Sha256() = default;

void Sha256::Add(absl::string_view bytes) {
  DTRAIN_CHECK(SHA256_Update(&context_->hash, bytes.data(), bytes.size()) == 1);
}

std::string Sha256::Finish() {
  std::string digest(kHashBytes, '\0');
  DTRAIN_CHECK(SHA256_Final(reinterpret_cast<unsigned char*>(digest.data()), &context_->hash) == 1);
  DTRAIN_CHECK(SHA256_Init(&context_->hash) == 1);
  return digest;
}

std::string HashOf(absl::string_view bytes) {
  Sha256 hash;
  hash.Add(bytes);
  return hash.Finish();
}

std::string HmacSha256(absl::string_view key, absl::string_view bytes) {
  constexpr size_t kBlock = 64;  // of SHA-256
  std::string block(key.size() > kBlock ? HashOf(key) : std::string(key));
  block.resize(kBlock, '\0');
  const auto padded = [&block](char pad) {
    std::string out = block;
    for (char& c : out) c = static_cast<char>(c ^ pad);
    return out;
  };
  Sha256 hash;
  hash.Add(padded(0x36));
  hash.Add(bytes);
  const std::string inner = hash.Finish();
  hash.Add(padded(0x5c));
  hash.Add(inner);
  return hash.Finish();
}

}  // namespace dtrain::manifest
