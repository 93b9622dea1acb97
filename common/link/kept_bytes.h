// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "absl/container/flat_hash_map.h"
#include "common/link/shared_bytes.h"

namespace dtrain::link {

// What keeping a message takes beside its bytes, counted wherever kept bytes are: a million empty
// messages are not free.
inline constexpr size_t kKeepingOverhead = 128;

// What the links of one launch may keep together. Bytes that several of them keep count once. Pure;
// outlives its links.
class KeptBytes {
 public:
  explicit KeptBytes(size_t most) : most_(most) {}
  KeptBytes(const KeptBytes&) = delete;
  KeptBytes& operator=(const KeptBytes&) = delete;

  // False: it does not fit, and nothing has changed.
  [[nodiscard]] bool Add(const SharedBytes& message);
  void Remove(const SharedBytes& message);
  size_t bytes() const { return bytes_; }
  size_t most() const { return most_; }

 private:
  const size_t most_;
  size_t bytes_ = 0;
  absl::flat_hash_map<const void*, size_t> keepers_;  // by the owner of the bytes
};

}  // namespace dtrain::link
