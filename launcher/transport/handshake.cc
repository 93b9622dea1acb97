// SPDX-License-Identifier: Apache-2.0
#include "launcher/transport/handshake.h"

#include <algorithm>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/text.h"
#include "launcher/transport/transport.h"

namespace dtrain::transport {
namespace {

// Marks beside the status: a missing file or path is NOT_FOUND too, and ssh refuses logins.
constexpr char kUnknownHost[] = "dtrain/unknown-host";
constexpr char kNotAuthorised[] = "dtrain/not-authorised";
constexpr char kStartedAnew[] = "dtrain/started-anew";
constexpr char kPassingMark[] = "dtrain/passes";

absl::Status Marked(absl::Status status, absl::string_view mark) {
  status.SetPayload(mark, absl::Cord());
  return status;
}

}  // namespace

std::string BridgeFlag(const Target& target) {
  if (target.resume) return target.keep ? "--resume-kept" : "--resume";
  if (target.keep) return "--keep";
  return target.asks ? "--ask" : "";
}

absl::Status UnknownHostError(absl::string_view message) {
  return Marked(absl::NotFoundError(message), kUnknownHost);
}

bool IsUnknownHost(const absl::Status& status) {
  return status.GetPayload(kUnknownHost).has_value();
}

absl::Status NotAuthorisedError(absl::string_view message) {
  return Marked(absl::PermissionDeniedError(message), kNotAuthorised);
}

bool IsNotAuthorised(const absl::Status& status) {
  return status.GetPayload(kNotAuthorised).has_value();
}

absl::Status PassingError(absl::Status why, absl::string_view what) {
  if (!why.ok() && !what.empty()) why.SetPayload(kPassingMark, absl::Cord(what));
  return why;
}

std::string WhatPasses(const absl::Status& why) {
  const auto what = why.GetPayload(kPassingMark);
  return what ? std::string(*what) : "";
}

absl::Status StartedAnewError(absl::string_view message) {
  return Marked(absl::NotFoundError(message), kStartedAnew);
}

bool WasStartedAnew(const absl::Status& status) {
  return status.GetPayload(kStartedAnew).has_value();
}

namespace {

bool IsLowerWord(absl::string_view s) {
  if (s.empty()) return false;
  for (char c : s) {
    if (!absl::ascii_islower(static_cast<unsigned char>(c)) && c != '_') return false;
  }
  return true;
}

// The version in "1 ready ..."; empty when the text is not of that form, so that a line that only
// happens to hold the tag (a shell that echoes what it reads) is noise.
std::optional<int> Version(absl::string_view* line) {
  size_t space = line->find(' ');
  int version = 0;
  if (space > 6 || !absl::SimpleAtoi(line->substr(0, space), &version) || version < 0) {
    return std::nullopt;
  }
  line->remove_prefix(space + 1);
  return version;
}

std::optional<HandshakeLine> Parse(absl::string_view text) {
  HandshakeLine line;
  size_t space = text.find(' ');
  line.word = std::string(text.substr(0, space));
  if (!IsLowerWord(line.word)) return std::nullopt;
  text = space == absl::string_view::npos ? absl::string_view() : text.substr(space + 1);
  while (!text.empty()) {
    size_t equals = text.find('=');
    absl::string_view key = text.substr(0, equals);
    if (equals == absl::string_view::npos || !IsLowerWord(key)) return std::nullopt;
    text.remove_prefix(equals + 1);
    size_t end = key == "reason" ? absl::string_view::npos : text.find(' ');
    line.fields.emplace_back(std::string(key), std::string(text.substr(0, end)));
    text = end == absl::string_view::npos ? absl::string_view() : text.substr(end + 1);
  }
  return line;
}

}  // namespace

absl::string_view HandshakeLine::Field(absl::string_view key) const {
  for (const auto& [k, v] : fields) {
    if (k == key) return v;
  }
  return {};
}

HandshakeScanner::State HandshakeScanner::Feed(absl::string_view bytes) {
  if (state_ == State::kFailed) return state_;
  if (state_ == State::kFound) {
    absl::StrAppend(&rest_, bytes);
    return state_;
  }
  absl::StrAppend(&buffer_, bytes);
  state_ = Scan();
  return state_;
}

HandshakeScanner::State HandshakeScanner::Scan() {
  for (;;) {
    absl::string_view all = buffer_;
    size_t at = all.find(kHandshakeTag, scanned_);
    if (at == absl::string_view::npos) {
      // The end may be the beginning of a tag.
      size_t keep = kHandshakeTag.size() - 1;
      scanned_ = all.size() > keep ? all.size() - keep : 0;
      if (scanned_ <= kMaxNoise) return State::kScanning;
      at = scanned_;
    }
    if (at > kMaxNoise) {
      scanned_ = at;
      return Fail(absl::StrCat("more than ", kMaxNoise >> 10,
                               " KiB of output came before any answer from an agent"));
    }
    scanned_ = at;
    if (at > 0 && all[at - 1] != '\n') {
      ++scanned_;
      continue;
    }
    absl::string_view text = all.substr(at + kHandshakeTag.size());
    size_t end = text.find('\n');
    if (end == absl::string_view::npos && text.size() <= kMaxHandshakeLine) return State::kScanning;
    if (end > kMaxHandshakeLine) {
      ++scanned_;
      continue;
    }
    absl::string_view line = text.substr(0, end);
    bool terminal = absl::ConsumeSuffix(&line, "\r");
    std::optional<int> version = Version(&line);
    std::optional<HandshakeLine> parsed = version ? Parse(line) : std::nullopt;
    if (version && *version != kHandshakeVersion) {
      return Fail(absl::StrCat("the agent there speaks version ", *version,
                               " of the handshake and this dtrain speaks ", kHandshakeVersion,
                               "; use an agent and a dtrain of the same release"));
    }
    if (!parsed) {
      ++scanned_;
      continue;
    }
    if (terminal) {
      return Fail(
          "there is a terminal between dtrain and the agent (its line ends with CR LF), which "
          "would "
          "corrupt the data; run the command without one (ssh -T, docker exec without -t)");
    }
    line_ = std::move(*parsed);
    rest_ = std::string(text.substr(end + 1));
    buffer_.resize(at);
    return State::kFound;
  }
}

HandshakeScanner::State HandshakeScanner::Fail(std::string message) {
  buffer_.resize(std::min(scanned_, kMaxNoise));
  std::string noise = FirstNoiseLine();
  if (!noise.empty()) absl::StrAppend(&message, "; its output begins: \"", noise, "\"");
  error_ = absl::FailedPreconditionError(message);
  return State::kFailed;
}

std::string HandshakeScanner::TakeRest() { return std::exchange(rest_, {}); }

std::string HandshakeScanner::FirstNoiseLine() const {
  for (absl::string_view line : absl::StrSplit(buffer_, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (!line.empty()) return Escape(line);
  }
  return "";
}

}  // namespace dtrain::transport
