// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/trace_text.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"

namespace dtrain::report {
namespace {

constexpr size_t kMostNumbers = 160;  // bytes of an event without the texts it is given

char* Put(absl::string_view text, char* to) {
  std::memcpy(to, text.data(), text.size());
  return to + text.size();
}

template <typename Unsigned>
char* PutNumber(Unsigned number, char* to) {
  return std::to_chars(to, to + 20, number).ptr;  // the longest has 20 digits
}

char* PutTwo(uint32_t number, char* to) {
  *to++ = static_cast<char>('0' + number / 10);
  *to++ = static_cast<char>('0' + number % 10);
  return to;
}

// In microseconds, exactly.
char* PutMicros(int64_t nanos, char* to) {
  auto size = static_cast<uint64_t>(nanos);
  if (nanos < 0) {
    *to++ = '-';
    size = -size;
  }
  const uint64_t seconds = size / 1'000'000'000;
  const auto rest = static_cast<uint32_t>(size % 1'000'000'000);
  const uint32_t micros = rest / 1000;
  if (seconds == 0) {
    to = PutNumber(micros, to);
  } else {
    to = PutNumber(seconds, to);
    to = PutTwo(micros / 10'000, to);
    to = PutTwo(micros / 100 % 100, to);
    to = PutTwo(micros % 100, to);
  }
  *to++ = '.';
  *to++ = static_cast<char>('0' + rest % 1000 / 100);
  return PutTwo(rest % 100, to);
}

}  // namespace

std::string QuotedName(absl::string_view name) {
  const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
    return c >= ' ' && c <= '~' && c != '"' && c != '\\';
  });
  if (plain) return absl::StrCat("\"", name, "\"");
  return nlohmann::json(std::string(name))
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string TrackText(int pid, int tid) {
  return absl::StrCat(R"("pid":)", pid, R"(,"tid":)", tid);
}

char* TraceText::Begin(size_t bytes) {
  constexpr absl::string_view kBetween = ",\n";
  const size_t needed = size_ + kBetween.size() + bytes;
  if (memory_.size() < needed) memory_.resize(std::max(needed, 2 * memory_.size()));
  char* to = memory_.data() + size_;
  if (std::exchange(first_, false)) {
    *to++ = '\n';
    return to;
  }
  return Put(kBetween, to);
}

void TraceText::Append(const TraceEvent& event) {
  char* to = Begin(kMostNumbers + event.name.size() + event.track.size() + event.args.size());
  to = Put(R"({"name":)", to);
  to = Put(event.name, to);
  to = Put(R"(,"ph":"X","ts":)", to);
  to = PutMicros(event.begin, to);
  to = Put(R"(,"dur":)", to);
  to = PutMicros(event.duration, to);
  *to++ = ',';
  to = Put(event.track, to);
  if (event.transfer) {
    to = Put(R"(,"args":{"number":)", to);
    to = PutNumber(event.transfer->number, to);
    to = Put(R"(,"bytes":)", to);
    to = PutNumber(event.transfer->bytes, to);
    *to++ = '}';
  } else if (!event.args.empty()) {
    to = Put(R"(,"args":)", to);
    to = Put(event.args, to);
  }
  *to++ = '}';
  size_ = static_cast<size_t>(to - memory_.data());
}

void TraceText::Append(absl::string_view json) {
  char* to = Put(json, Begin(json.size()));
  size_ = static_cast<size_t>(to - memory_.data());
}

}  // namespace dtrain::report
