// SPDX-License-Identifier: Apache-2.0
// The first byte says how the rest, what a client sends behind its preface, is cut into pieces.
#include <algorithm>
#include <string>

#include "common/rpc/frame_guard.h"
#include "tests/fuzz/expect.h"

namespace {

using dtrain::rpc::FrameGuard;

// All of it, or up to where it is refused.
absl::Status Take(absl::string_view text, size_t piece) {
  FrameGuard guard;
  for (size_t at = 0; at < text.size(); at += piece) {
    if (absl::Status fine = guard.Take(text.substr(at, piece)); !fine.ok()) return fine;
  }
  return absl::OkStatus();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::string text(24, 'P');
  // Enough of what it does not like is beyond what a fuzzer writes.
  const absl::string_view frames = dtrain::fuzz::Text(data + 1, size - 1);
  for (int i = 0; i < 30; ++i) text.append(frames.data(), frames.size());
  const absl::Status whole = Take(text, text.size());
  DTRAIN_CHECK(whole == Take(text, 1 + data[0]));
  if (!whole.ok()) dtrain::fuzz::ExpectPrintable(whole);
  return 0;
}
