// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

// A tree of files as text, the same for the same tree wherever it is made: for each file in the
// order of the paths' bytes one of
//
//   f SIZE SHA256 PATH NUL
//   x SIZE SHA256 PATH NUL         executable
//   l PATH NUL TARGET NUL          a symbolic link
//
// The SHA-256 of that text names the tree. Pure.
namespace dtrain::manifest {

inline constexpr size_t kMostBytes = 16 << 20;
inline constexpr size_t kMostFiles = 40000;
inline constexpr size_t kDeepest = 28;  // names in a path

struct File {
  enum class Kind { kData, kProgram, kLink };
  Kind kind = Kind::kData;
  std::string path;    // relative, without "." and ".."
  uint64_t size = 0;   // not of links, as the next
  std::string sha256;  // kHashBytes bytes
  std::string target;  // of a link, relative, within the tree
  bool operator==(const File&) const = default;
};

// INVALID_ARGUMENT: no file of a tree has this path, or this link leads out of it. CheckLink looks
// at the text alone; Format and Parse also follow the links that a target passes through.
absl::Status CheckPath(absl::string_view path);
absl::Status CheckLink(absl::string_view path, absl::string_view target);

// Sorts `files`. INVALID_ARGUMENT: they are no tree, or more than a manifest may have.
absl::StatusOr<std::string> Format(std::vector<File>& files);
// INVALID_ARGUMENT: Format writes no such text.
absl::StatusOr<std::vector<File>> Parse(absl::string_view text);

}  // namespace dtrain::manifest
