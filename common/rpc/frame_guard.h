// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace dtrain::rpc {

// Calls that a peer may have at a time. A launcher has two, who asks for status one.
inline constexpr int kMostCalls = 100;

// PURE. Reads along with what an HTTP/2 client sends, and tells what no launcher does and gRPC 1.51
// takes for as long as it comes, with memory for each of it: calls that are taken back by the
// thousand, headers without an end, and calls beyond kMostCalls, which gRPC refuses only once the
// peer has acknowledged that number.
class FrameGuard {
 public:
  FrameGuard();
  // The next bytes of the connection. RESOURCE_EXHAUSTED: it is to be closed.
  absl::Status Take(absl::string_view bytes);

 private:
  absl::Status OnHead();

  size_t skip_;       // of what is no frame's head: the preface, then payloads
  std::string head_;  // as far as it is here
  size_t block_ = 0;  // bytes of the header block that is coming
  size_t resets_ = 0;
  int unacknowledged_ = 0;  // calls before the peer acknowledged our settings
  bool acknowledged_ = false;
};

}  // namespace dtrain::rpc
