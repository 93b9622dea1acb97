// SPDX-License-Identifier: Apache-2.0
#pragma once

// ThreadSanitizer sees neither gRPC's locks nor its counters: the libraries are not built with it.
// In a build with -fsanitize=thread tsan.cc tells it of each absl::Mutex that is taken, and of what
// gRPC promises: what the starter of an operation did comes before what its callback does, and what
// callbacks did before the end of their server. That and no more, so that a race of ours in a
// callback is still one. In other builds this is empty.
namespace dtrain::rpc {

#ifdef __SANITIZE_THREAD__
// For the end of a callback after which its server may be destroyed.
void CallbackEnds();
// When the server has shut down.
void CallbacksHaveEnded();
#else
inline void CallbackEnds() {}
inline void CallbacksHaveEnded() {}
#endif

}  // namespace dtrain::rpc
