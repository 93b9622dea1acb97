// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "launcher/output/file_pattern.h"
#include "launcher/output/shown.h"

namespace dtrain::output {

enum class Tag { kNone, kRank, kHost };  // --tag-output

// How the workers' output is shown and kept.
struct Options {
  std::optional<Tag> tag;  // none: ranks when more than one writes, else nothing
  bool timestamps = false;
  std::string log_dir = {};  // empty: no files
  bool goes_on = false;      // a launcher before us has written to the log files of this job
  bool fold = true;          // a traceback that several ranks write is shown once
  Shown shown = {};
  bool of_another = false;  // another user's job: on a terminal not even its colours are obeyed
  std::optional<FilePattern> files = std::nullopt;  // --output; not together with log_dir
};

}  // namespace dtrain::output
