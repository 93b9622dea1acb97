// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace dtrain {

// Absolute paths of this checkout and build, for tests. Not macros: a path among a compiler's
// arguments would keep ccache from serving any of the tests to another checkout.
std::string SourcePath(const std::string& name);   // below the repository
std::string ProgramPath(const std::string& name);  // below the build's bin
std::string LibraryPath(const std::string& name);  // below the build's lib

}  // namespace dtrain
