// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "dtrain/v1/job.pb.h"
#include "launcher/output/layout.h"

namespace dtrain::output {

// --output: names of files. %r rank, %R rank with as many digits as the last one has, %l local
// rank, %n node rank, %h host, %j job id, %a attempt, %s stdout or stderr, %% a percent sign. Pure.
class FilePattern {
 public:
  // Fails for a pattern that has other letters or does not end in the name of a file.
  static absl::StatusOr<FilePattern> Parse(absl::string_view text);

  const std::string& text() const { return text_; }
  // The folders that all names have in common; "." if none.
  const std::string& folder() const { return folder_; }
  // A relative pattern is one of files in `directory` from now on.
  void SeenFrom(const std::string& directory);
  // Whether the two streams of a rank have files of their own.
  bool HasStream() const;
  // Of a file in folder() that jobs which would write to the same files have in common. Empty:
  // their ids are in the names, or these are too long.
  std::string LockName() const;
  // Below folder().
  std::string Name(const Layout& layout, Rank rank, v1::StreamKind stream) const;

  // INVALID_ARGUMENT when two ranks would write to the same file, or a host's name cannot be part
  // of one.
  absl::Status Check(const Layout& layout) const;

 private:
  struct Piece {
    char letter;       // 0: text
    std::string text;  // before folder() is taken away
  };

  std::string text_;
  std::string folder_;
  std::vector<Piece> pieces_;
};

}  // namespace dtrain::output
