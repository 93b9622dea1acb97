// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/pmi_line.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/text.h"

namespace dtrain::shepherd {
namespace {

constexpr size_t kMostArguments = 64;

bool IsText(char c) {
  auto u = static_cast<unsigned char>(c);
  return u >= 0x20 && u != 0x7F;
}

}  // namespace

const std::string* PmiRequest::Find(absl::string_view key) const {
  for (const auto& [name, value] : arguments) {
    if (name == key) return &value;
  }
  return nullptr;
}

std::optional<int> PmiRequest::FindInt(absl::string_view key) const {
  const std::string* text = Find(key);
  int value = 0;
  if (text == nullptr || !absl::SimpleAtoi(*text, &value)) return std::nullopt;
  return value;
}

size_t PmiLineSize(absl::string_view bytes) {
  const size_t end = bytes.find('\n');
  if (end != absl::string_view::npos) return end + 1;
  return bytes.size() < kPmiLineMax ? 0 : kPmiLineMax;
}

absl::StatusOr<PmiRequest> ParsePmiLine(absl::string_view line) {
  auto bad = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(why, ": \"", Escape(line, 80), "\""));
  };
  // MPICH from 4.2 on says why it aborts, in any words and to the end of the line.
  if (absl::StartsWith(line, "cmd=abort ")) line = line.substr(0, line.find(" message="));
  if (line.size() >= kPmiLineMax) return bad("a line of more than 1024 bytes");
  if (!std::all_of(line.begin(), line.end(), IsText)) return bad("a control byte");
  PmiRequest request;
  for (absl::string_view word : absl::StrSplit(line, ' ', absl::SkipEmpty())) {
    size_t equals = word.find('=');
    if (equals == absl::string_view::npos || equals == 0)
      return bad("a word that is not key=value");
    std::string key(word.substr(0, equals));
    std::string value(word.substr(equals + 1));
    if (request.command.empty()) {
      if ((key != "cmd" && key != "mcmd") || value.empty()) return bad("no command at the front");
      request.command = std::move(value);
      request.multi_line = key == "mcmd";
      continue;
    }
    if (request.Find(key) != nullptr) return bad("a key that comes twice");
    if (request.arguments.size() == kMostArguments) return bad("too many keys");
    request.arguments.emplace_back(std::move(key), std::move(value));
  }
  if (request.command.empty()) return bad("an empty line");
  return request;
}

std::string FormatPmiLine(
    absl::string_view command,
    std::initializer_list<std::pair<absl::string_view, absl::string_view>> arguments) {
  std::string line = absl::StrCat("cmd=", command);
  for (const auto& [key, value] : arguments) absl::StrAppend(&line, " ", key, "=", value);
  line += '\n';
  return line;
}

bool FitsPmiLine(absl::string_view value) {
  return std::all_of(value.begin(), value.end(), [](char c) { return IsText(c) && c != ' '; });
}

std::string PmiWord(absl::string_view text, size_t limit) {
  std::string word(text.substr(0, limit));
  for (char& c : word) {
    auto u = static_cast<unsigned char>(c);
    if (u <= 0x20 || u >= 0x7F) c = '_';
  }
  return word;
}

}  // namespace dtrain::shepherd
