// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "dtrain/v1/job.pb.h"

namespace dtrain::shepherd {

// The file that an interpreter is told to run.
struct Script {
  std::string path;      // as the command line has it
  bool in_path = false;  // a shell would look for it in PATH, too
};

// "train.py" of `python3 -u train.py --epochs 3`. None: the command has no script, or none that can
// be told for sure (`python -m pkg`, `bash -c …`, an option that we do not know). Pure.
std::optional<Script> ScriptOf(const v1::Program& program);

// Whether a worker that is started with `path` as its PATH finds no such file: it is not there, and
// not only out of reach. Looks at the node's files.
bool IsMissing(const Script& script, const std::string& working_directory, absl::string_view path);

}  // namespace dtrain::shepherd
