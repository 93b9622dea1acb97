// SPDX-License-Identifier: Apache-2.0
#pragma once

// For our own invariants only: prints file, line and condition, and aborts. Anything from outside
// (peer, file, user, child, network) is an absl::Status instead and must never reach one.
#define DTRAIN_CHECK(condition)                 \
  (__builtin_expect(!!(condition), 1) ? (void)0 \
                                      : ::dtrain::CheckFailed(__FILE__, __LINE__, #condition))

namespace dtrain {

[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);

}  // namespace dtrain
