// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/host_spec.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "launcher/hosts/host_name.h"
#include "launcher/hosts/hostfile.h"

namespace dtrain::hosts {
namespace {

constexpr absl::string_view kIpv6Advice = "write host:slots, or [address]:slots for IPv6";

}  // namespace

absl::StatusOr<HostWord> ParseHostWord(const Source& source, Position at, absl::string_view text,
                                       absl::string_view advice) {
  HostWord word;
  absl::string_view host = text;
  bool ipv6 = false;
  size_t close = text.find(']');
  if (!text.empty() && text.front() == '[' && close != absl::string_view::npos &&
      text.substr(0, close).find(':') != absl::string_view::npos) {
    ipv6 = true;
    host = text.substr(1, close - 1);
    word.tail = text.substr(close + 1);
    if (!word.tail.empty() && word.tail.front() != ':') {
      return source.Error(at.Plus(close + 1), "text after an IPv6 address", text, advice);
    }
  } else if (auto colons = std::count(text.begin(), text.end(), ':'); colons == 1) {
    host = text.substr(0, text.find(':'));
    word.tail = text.substr(host.size());
  } else {
    ipv6 = colons > 1;
  }

  if (ipv6) {
    if (!IsIpv6(host)) return source.Error(at, "not an IPv6 address", text, advice);
    word.pattern = HostPattern::Literal(host);
    return word;
  }
  auto pattern = HostPattern::Parse(source, at, host);
  if (!pattern.ok()) return pattern.status();
  word.pattern = *std::move(pattern);
  return word;
}

absl::Status CheckUser(const Source& source, Position at, absl::string_view user) {
  auto fault = FindUserFault(user);
  if (!fault) return absl::OkStatus();
  return source.Error(at.Plus(fault->offset), fault->what, user, kNameAdvice);
}

absl::StatusOr<HostSpec> ParseHostSpec(const Source& source, Position at, absl::string_view word) {
  HostSpec spec;
  spec.at = at;
  size_t host_start = 0;
  // The last one, as ssh does: a login name may hold '@' itself.
  if (size_t sign = word.rfind('@'); sign != absl::string_view::npos) {
    absl::Status status = CheckUser(source, at, word.substr(0, sign));
    if (!status.ok()) return status;
    spec.user = std::string(word.substr(0, sign));
    host_start = sign + 1;
  }
  auto host = ParseHostWord(source, at.Plus(host_start), word.substr(host_start), kIpv6Advice);
  if (!host.ok()) return host.status();
  spec.pattern = std::move(host->pattern);
  if (host->tail.empty()) return spec;
  auto slots = ParseNumber(source, at.Plus(word.size() - host->tail.size() + 1), "slots",
                           host->tail.substr(1), 1, kMaxSlots);
  if (!slots.ok()) return slots.status();
  spec.slots = *slots;
  return spec;
}

std::vector<std::pair<Position, absl::string_view>> SplitHostList(absl::string_view text,
                                                                  bool blanks_separate) {
  std::vector<std::pair<Position, absl::string_view>> items;
  bool in_brackets = false;
  size_t start = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size()) {
      char c = text[i];
      if (c == '[') in_brackets = true;
      if (c == ']') in_brackets = false;
      bool separates = c == ',' || (blanks_separate && absl::ascii_isblank(c));
      if (in_brackets || !separates) continue;
    }
    size_t begin = start;
    size_t end = i;
    while (begin < end && absl::ascii_isblank(text[begin])) ++begin;
    while (end > begin && absl::ascii_isblank(text[end - 1])) --end;
    // Between two blanks, or a blank and a comma, nothing was meant to be.
    if (end > begin || !blanks_separate) {
      items.emplace_back(Position{}.Plus(begin), text.substr(begin, end - begin));
    }
    start = i + 1;
  }
  return items;
}

}  // namespace dtrain::hosts
