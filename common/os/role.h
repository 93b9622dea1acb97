// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>

namespace dtrain::os {

// What a process does first that one of ours has started to serve somebody: `ps` shows it by this
// name (15 bytes at most), the descriptors that it was given go to no child of its own, its writes
// fail without signals, and it may have as many files open as the system allows.
void BeginRole(const char* name, std::initializer_list<int> descriptors);

}  // namespace dtrain::os
