// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace dtrain::spawner {

// Why PAM's account phase for the service "dtrain" does not admit this account: it has expired,
// say, or may not log in here. Empty: it does. Loads and runs modules, which may hang, in this
// process: for an asker alone. Without libpam nobody is admitted.
std::string AskPam(const std::string& account);

}  // namespace dtrain::spawner
