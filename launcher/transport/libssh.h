// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"

namespace dtrain::transport {

// Opens libssh, before any function of it is called: a launch that needs no ssh starts sooner
// without it and what it brings (Kerberos, a second OpenSSL), and works where it is not installed.
// The system's comes first if it is 0.10 or later, then our own copy. NOT_FOUND when there is
// neither, INVALID_ARGUMENT when the one that DTRAIN_LIBSSH names cannot be used. Any thread; the
// first call blocks for a few milliseconds.
absl::Status LoadLibssh();

}  // namespace dtrain::transport
