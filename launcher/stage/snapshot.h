// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/manifest/manifest.h"

namespace dtrain::stage {

inline constexpr uint64_t kMostBytes = 100 << 20;
inline constexpr size_t kMostFiles = 20000;

// --stage or --verify-code, and what belongs to them.
struct Options {
  std::string directory;   // absolute; empty: nothing is staged
  bool compare = false;    // nothing is copied: all hosts must have it there
  bool only_warn = false;  // where one has not, that is a warning
  bool keep = false;       // hosts keep their copies when the job has ended
  bool quiet = false;      // nothing is said of it if all goes well
  std::vector<std::string> exclude;
  std::vector<std::string> include;
  std::optional<uint64_t> most_bytes;  // given: as many files as a manifest may have
};

// A tree as it was when it was read.
struct Snapshot {
  std::string directory;
  std::vector<manifest::File> files;
  std::string manifest;
  std::string sha256;  // of it
  uint64_t bytes = 0;  // of all files
  std::string git;     // "1a2b3c4 + 2 changed"; empty: no git work tree
  std::vector<std::string> warnings;
};

// Reads the tree. `cache`: a folder for the hashes of files that have not changed since; empty:
// none. INVALID_ARGUMENT: something in it cannot be staged, or it is too much.
absl::StatusOr<Snapshot> TakeSnapshot(const Options& options, const std::string& cache);

// One that was taken earlier, of the tree that is or was in `directory`.
absl::StatusOr<Snapshot> SnapshotOf(std::string manifest, std::string git, std::string directory);

// "code 3f2a91c04b7d: 214 files, 3.1 MiB, git 1a2b3c4 + 2 changed"
std::string Describe(const Snapshot& snapshot);
// As people name a tree: the first twelve digits.
std::string ShortHash(const Snapshot& snapshot);

}  // namespace dtrain::stage
