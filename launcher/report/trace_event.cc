// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/trace_event.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

namespace dtrain::report {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostFixed = 256;  // of an event without its name and arguments
constexpr size_t kMostPerByte = 6;  // of a name: \u0001

char* Put(absl::string_view text, char* to) {
  std::memcpy(to, text.data(), text.size());
  return to + text.size();
}

template <typename Integer>
char* PutNumber(Integer number, char* to) {
  return std::to_chars(to, to + std::numeric_limits<Integer>::digits10 + 2, number).ptr;
}

// In microseconds, exactly.
char* PutMicros(int64_t nanos, char* to) {
  uint64_t size = static_cast<uint64_t>(nanos);
  if (nanos < 0) {
    *to++ = '-';
    size = -size;
  }
  to = PutNumber(size / 1000, to);
  const auto rest = static_cast<unsigned>(size % 1000);
  *to++ = '.';
  *to++ = static_cast<char>('0' + rest / 100);
  *to++ = static_cast<char>('0' + rest / 10 % 10);
  *to++ = static_cast<char>('0' + rest % 10);
  return to;
}

// Nearly all names need no more than quotes.
char* PutName(absl::string_view name, char* to) {
  const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
    return c >= ' ' && c <= '~' && c != '"' && c != '\\';
  });
  if (!plain) {
    return Put(Json(std::string(name)).dump(-1, ' ', false, Json::error_handler_t::replace), to);
  }
  *to++ = '"';
  to = Put(name, to);
  *to++ = '"';
  return to;
}

}  // namespace

void AppendEvent(const TraceEvent& event, std::string& out) {
  const size_t before = out.size();
  out.resize(before + kMostFixed + event.name.size() * kMostPerByte + event.args.size());
  char* to = out.data() + before;
  to = Put(R"({"name":)", to);
  to = PutName(event.name, to);
  to = Put(R"(,"ph":"X","ts":)", to);
  to = PutMicros(event.begin, to);
  to = Put(R"(,"dur":)", to);
  to = PutMicros(event.duration, to);
  to = Put(R"(,"pid":)", to);
  to = PutNumber(event.pid, to);
  to = Put(R"(,"tid":)", to);
  to = PutNumber(event.tid, to);
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
  out.resize(static_cast<size_t>(to - out.data()));
}

}  // namespace dtrain::report
