// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/worker_error.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace dtrain::report {
namespace {

constexpr size_t kEnoughLines = 10;

std::string TextAt(const nlohmann::json& object, const char* name) {
  const auto found = object.is_object() ? object.find(name) : object.end();
  const bool is_text = object.is_object() && found != object.end() && found->is_string();
  return is_text ? found->get<std::string>() : "";
}

// Seconds, as a text or (not by PyTorch so far) a number.
int64_t TimeAt(const nlohmann::json& object) {
  if (!object.is_object()) return 0;
  const auto found = object.find("timestamp");
  if (found == object.end()) return 0;
  if (found->is_number_integer()) return found->get<int64_t>();
  int64_t seconds = 0;
  return absl::SimpleAtoi(TextAt(object, "timestamp"), &seconds) ? seconds : 0;
}

// Without the heading, as an uncaught exception has more frames below it, and without line ends.
std::vector<absl::string_view> LinesOf(absl::string_view text) {
  std::vector<absl::string_view> lines;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripTrailingAsciiWhitespace(line);
    if (!line.empty() && line != "Traceback (most recent call last):") lines.push_back(line);
  }
  return lines;
}

}  // namespace

absl::StatusOr<WorkerError> ParseErrorFile(absl::string_view text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return absl::InvalidArgumentError("it is not JSON, or cut short");
  const auto found = json.is_object() ? json.find("message") : json.end();
  if (!json.is_object() || found == json.end()) {
    return absl::InvalidArgumentError("it is not an object with a \"message\"");
  }
  WorkerError error;
  if (found->is_string()) {
    error.message = found->get<std::string>();
    error.unix_seconds = TimeAt(json);
  } else {
    error.message = TextAt(*found, "message");
    const auto extra = found->is_object() ? found->find("extraInfo") : found->end();
    if (found->is_object() && extra != found->end()) {
      error.traceback = TextAt(*extra, "py_callstack");
      error.unix_seconds = TimeAt(*extra);
    }
  }
  if (error.message.empty()) return absl::InvalidArgumentError("its \"message\" has no text");
  return error;
}

bool ShowsTraceback(absl::string_view stderr_tail, absl::string_view traceback) {
  std::vector<absl::string_view> wanted = LinesOf(traceback);
  const std::vector<absl::string_view> shown = LinesOf(stderr_tail);
  if (wanted.size() > kEnoughLines) wanted.erase(wanted.begin(), wanted.end() - kEnoughLines);
  return std::search(shown.begin(), shown.end(), wanted.begin(), wanted.end()) != shown.end() ||
         wanted.empty();
}

}  // namespace dtrain::report
