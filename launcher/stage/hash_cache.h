// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

#include "absl/container/flat_hash_map.h"

namespace dtrain::stage {

// The hashes of the files of one tree, in a file: a file of the same device, inode, size, mtime and
// ctime has the same content. Nothing depends on it but time: what it cannot read or write it
// forgets.
class HashCache {
 public:
  explicit HashCache(std::string path);  // empty: keeps nothing

  std::optional<std::string> Find(const struct stat& status) const;
  // `read_at`: before it was read, in nanoseconds since 1970. What was changed less than two
  // seconds before may change again without a later time, and is not kept.
  void Add(const struct stat& status, std::string sha256, int64_t read_at);
  // What was found and added since, if that is anything new.
  void Save();

 private:
  using Key = std::tuple<uint64_t, uint64_t, uint64_t, int64_t, int64_t>;
  static Key KeyOf(const struct stat& status);

  const std::string path_;
  absl::flat_hash_map<Key, std::string> old_;
  mutable absl::flat_hash_map<Key, std::string> used_;
  bool changed_ = false;
};

}  // namespace dtrain::stage
