// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

// dtrain version --verbose: what is inside this program, and what it finds around it.
namespace dtrain::version {

struct Library {
  std::string name;
  std::string version;
};

// Those that are compiled or linked into this program, by their own word. Pure.
std::vector<Library> Libraries();

// The build id of an ELF file of 64 bits and this byte order as hex digits; empty when it has none
// or is not such a file. Pure.
std::string BuildId(absl::string_view elf);

// Lines for people. Opens libssh as a launch does, and reads this program's file and the agent's
// beside it.
std::string Describe(absl::string_view version);

}  // namespace dtrain::version
