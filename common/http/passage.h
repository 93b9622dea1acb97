// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "common/base/clock.h"
#include "common/http/message.h"
#include "common/loop/loop.h"

namespace dtrain::http {

// Asks a server on a unix socket what we were asked, and gives its answer on as it comes: 502 when
// there is none, 504 when it takes longer than `patience` to begin. `reply` may be called at once.
// Loop thread; never blocks.
void PassOn(loop::Loop& loop, const std::string& socket, const Target& target, Duration patience,
            Reply reply);

}  // namespace dtrain::http
