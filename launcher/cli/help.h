// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace dtrain::cli {

std::string GeneralHelp();  // dtrain --help
std::string LaunchHelp();   // dtrain launch --help

}  // namespace dtrain::cli
