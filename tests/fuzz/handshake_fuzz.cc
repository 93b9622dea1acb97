// SPDX-License-Identifier: Apache-2.0
// The first byte says how the rest is cut into pieces.
#include <algorithm>
#include <string>

#include "launcher/transport/handshake.h"
#include "tests/fuzz/expect.h"

using dtrain::transport::HandshakeScanner;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  size_t piece = std::max<size_t>(1, data[0]);
  absl::string_view text = dtrain::fuzz::Text(data + 1, size - 1);

  HandshakeScanner whole;
  whole.Feed(text);
  HandshakeScanner pieces;
  for (size_t at = 0; at < text.size() && pieces.state() != HandshakeScanner::State::kFailed;
       at += piece) {
    pieces.Feed(text.substr(at, piece));
  }

  DTRAIN_CHECK(whole.state() == pieces.state());
  DTRAIN_CHECK(whole.line().word == pieces.line().word);
  DTRAIN_CHECK(whole.line().fields == pieces.line().fields);
  if (whole.state() == HandshakeScanner::State::kFailed) {
    DTRAIN_CHECK(!whole.error().ok());
    DTRAIN_CHECK(whole.error().message() == pieces.error().message());
  }
  if (whole.state() == HandshakeScanner::State::kFound) {
    DTRAIN_CHECK(!whole.line().word.empty());
    std::string rest = whole.TakeRest();
    DTRAIN_CHECK(rest == pieces.TakeRest());
    DTRAIN_CHECK(text.substr(text.size() - rest.size()) == rest);
  }
  for (char c : whole.FirstNoiseLine()) DTRAIN_CHECK(static_cast<unsigned char>(c) >= ' ');
  return 0;
}
