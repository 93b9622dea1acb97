// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "common/tls/openssl.h"

namespace dtrain::tls {

// OpenSSL's way to a non-blocking stream socket, which is borrowed. OpenSSL's own would be ended
// by SIGPIPE when the peer is gone, and a library does not set a process's signals.
UniqueBio MakeSocketBio(int fd);

}  // namespace dtrain::tls
