// SPDX-License-Identifier: Apache-2.0
#include "tests/support/paths.h"

namespace dtrain {

std::string SourcePath(const std::string& name) { return DTRAIN_SOURCE_DIR "/" + name; }
std::string ProgramPath(const std::string& name) { return DTRAIN_BIN_DIR "/" + name; }
std::string LibraryPath(const std::string& name) { return DTRAIN_LIB_DIR "/" + name; }

}  // namespace dtrain
