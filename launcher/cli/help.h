// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "launcher/cli/page.h"

namespace dtrain::cli {

Page LaunchPage();  // dtrain launch

}  // namespace dtrain::cli
