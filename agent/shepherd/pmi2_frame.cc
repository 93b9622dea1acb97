// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/pmi2_frame.h"

#include <algorithm>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/base/text.h"

namespace dtrain::shepherd {
namespace {

bool IsKeyChar(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_';
}

// The specification pads on the left, as MPICH does; Slurm's client pads on the right.
std::optional<size_t> BodySize(absl::string_view header) {
  while (!header.empty() && header.front() == ' ') header.remove_prefix(1);
  while (!header.empty() && header.back() == ' ') header.remove_suffix(1);
  size_t size = 0;
  if (!std::all_of(header.begin(), header.end(),
                   [](char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); }) ||
      !absl::SimpleAtoi(header, &size) || size == 0 || size > kPmi2BodyMax) {
    return std::nullopt;
  }
  return size;
}

// Takes a value off the front of `body`, with the ';' that ends it. False when there is none.
bool TakeValue(absl::string_view* body, std::string* value) {
  while (true) {
    const size_t end = body->find(';');
    if (end == absl::string_view::npos) return false;
    const bool doubled = end + 1 < body->size() && (*body)[end + 1] == ';';
    value->append(body->data(), doubled ? end + 1 : end);
    body->remove_prefix(doubled ? end + 2 : end + 1);
    if (!doubled) return true;
  }
}

}  // namespace

size_t Pmi2FrameSize(absl::string_view bytes) {
  if (bytes.size() < kPmi2HeaderSize) return 0;
  const auto body = BodySize(bytes.substr(0, kPmi2HeaderSize));
  if (!body) return kPmi2HeaderSize;
  return bytes.size() < kPmi2HeaderSize + *body ? 0 : kPmi2HeaderSize + *body;
}

absl::StatusOr<PmiRequest> ParsePmi2Frame(absl::string_view frame) {
  auto bad = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(why, ": \"", Escape(frame, 80), "\""));
  };
  const auto size = BodySize(frame.substr(0, kPmi2HeaderSize));
  if (!size) return bad("a frame whose length is not a number from 1 to 65536");
  absl::string_view body = frame.substr(std::min(frame.size(), kPmi2HeaderSize));
  if (body.size() != *size) return bad("a frame of another length than it says");
  PmiRequest request;
  while (!body.empty()) {
    const size_t length =
        static_cast<size_t>(std::find_if_not(body.begin(), body.end(), IsKeyChar) - body.begin());
    if (length == 0 || length > kPmiKeyMax) return bad("a frame with a bad key");
    std::string key(body.substr(0, length));
    std::string value;
    body.remove_prefix(length);
    // The reason comes last, and MPICH doubles no ';' in it.
    if (request.command == "abort" && (key == "message" || key == "msg")) break;
    if (!body.empty() && body.front() == '=') {
      body.remove_prefix(1);
    } else if (body.empty() || body.front() != ';') {
      return bad("a frame with a bad key");
    }
    if (!TakeValue(&body, &value)) return bad("a frame that does not end with ';'");
    if (!request.command.empty()) {
      request.arguments.emplace_back(std::move(key), std::move(value));
    } else if (key == "cmd" && !value.empty()) {
      request.command = std::move(value);
    } else {
      return bad("a frame with no command at the front");
    }
  }
  return request;
}

std::string FormatPmi2Frame(absl::string_view command, const Pmi2Fields& fields) {
  std::string body = absl::StrCat("cmd=", command, ";");
  for (const auto& [key, value] : fields) {
    absl::StrAppend(&body, key, "=", absl::StrReplaceAll(value, {{";", ";;"}}), ";");
  }
  return absl::StrFormat("%*d%s", int{kPmi2HeaderSize}, body.size(), body);
}

}  // namespace dtrain::shepherd
