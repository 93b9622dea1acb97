// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace dtrain::os {

inline constexpr unsigned kEveryDescriptor = ~0U;

// Closes the descriptors `first` to `last` of this process, both included. On kernels without
// close_range (before Linux 5.9) it closes what /proc/self/fd lists, or without /proc everything up
// to RLIMIT_NOFILE. Allocates nothing and takes no locks: a child may call it between its fork, or
// vfork, and its exec.
void CloseRange(unsigned first, unsigned last);

}  // namespace dtrain::os
