// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace dtrain::transport {

// The line, at the beginning of a line, by which a remote side says that it is ours and how far it
// is:
//   DTRAIN-AGENT/1 ready [key=value...]     gRPC follows the line feed
//   DTRAIN-AGENT/1 need machine=x86_64 gzip=yes [home=NAME]   no agent of this build there: send it
//   DTRAIN-AGENT/1 error code=nospace reason=text to the end of the line
inline constexpr absl::string_view kHandshakeTag = "DTRAIN-AGENT/";
inline constexpr int kHandshakeVersion = 1;
// People's shell start-up files talk. More than this is not a greeting but the wrong program.
inline constexpr size_t kMaxNoise = 64 << 10;
inline constexpr size_t kMaxHandshakeLine = 4096;

struct HandshakeLine {
  std::string word;
  std::vector<std::pair<std::string, std::string>> fields;

  // The value of the first field of that name; empty when there is none.
  absl::string_view Field(absl::string_view key) const;
};

// Finds the handshake line in what a remote side prints, with noise before it. Pure; the result
// does not depend on how the bytes were cut into pieces.
class HandshakeScanner {
 public:
  enum class State { kScanning, kFound, kFailed };

  // Bytes given after kFound are added to the rest.
  State Feed(absl::string_view bytes);
  State state() const { return state_; }
  const HandshakeLine& line() const { return line_; }   // once found
  const absl::Status& error() const { return error_; }  // once failed
  // The bytes after the line, which are not ours: given away once.
  std::string TakeRest();
  // The first line that is not blank of what came instead of, or before, the handshake; escaped.
  std::string FirstNoiseLine() const;

 private:
  State Scan();
  State Fail(std::string message);
  std::string buffer_;  // noise and a line not yet complete; after kFound the noise alone
  size_t scanned_ = 0;  // no tag starts before this
  std::string rest_;
  HandshakeLine line_;
  absl::Status error_;
  State state_ = State::kScanning;
};

}  // namespace dtrain::transport
