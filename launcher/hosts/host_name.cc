// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/host_name.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "launcher/hosts/hostfile.h"
#include "launcher/hosts/source.h"

namespace dtrain::hosts {
namespace {

std::optional<NameFault> FindFault(absl::string_view kind, absl::string_view text,
                                   absl::string_view extra, size_t max_length = kMaxNameLength) {
  if (text.empty()) return NameFault{0, absl::StrCat(kind, " is empty")};
  if (text.front() == '-') return NameFault{0, absl::StrCat(kind, " starts with '-'")};
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    bool ok = absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-' ||
              extra.find(c) != absl::string_view::npos;
    if (!ok) {
      return NameFault{
          i, absl::StrCat(kind, " must not contain '", EscapeAscii(text.substr(i, 1)), "'")};
    }
  }
  if (text.size() > max_length) {
    return NameFault{
        0, absl::StrCat(kind, " has ", text.size(), " characters, more than ", max_length)};
  }
  return std::nullopt;
}

using Ipv6Bytes = std::array<char, 16>;

std::optional<std::pair<Ipv6Bytes, absl::string_view>> SplitIpv6(absl::string_view text) {
  constexpr size_t kMaxZone = 15;  // IFNAMSIZ without its NUL
  size_t percent = text.find('%');
  absl::string_view address = text.substr(0, percent);
  absl::string_view zone;
  if (percent != absl::string_view::npos) {
    zone = text.substr(percent + 1);
    if (zone.size() > kMaxZone || FindFault("zone", zone, "")) return std::nullopt;
  }
  Ipv6Bytes bytes;
  // inet_pton stops at a NUL.
  if (address.size() > INET6_ADDRSTRLEN || address.find('\0') != absl::string_view::npos ||
      inet_pton(AF_INET6, std::string(address).c_str(), bytes.data()) != 1) {
    return std::nullopt;
  }
  return std::pair(bytes, zone);
}

}  // namespace

std::optional<NameFault> FindHostNameFault(absl::string_view host, size_t max_length) {
  if (auto fault = FindFault("host name", host, "", max_length)) return fault;
  if (host.front() == '.') return NameFault{0, "host name starts with '.'"};
  size_t empty_label = host.find("..");
  if (empty_label != absl::string_view::npos)
    return NameFault{empty_label, "host name contains '..'"};
  return std::nullopt;
}

std::optional<NameFault> FindUserFault(absl::string_view user) {
  return FindFault("user name", user, "@+");
}

bool IsIpv6(absl::string_view text) { return SplitIpv6(text).has_value(); }

std::string HostKey(absl::string_view host) {
  if (host.find(':') != absl::string_view::npos) {
    if (auto parts = SplitIpv6(host)) {
      return absl::StrCat(absl::string_view(parts->first.data(), parts->first.size()), "%",
                          parts->second);
    }
  }
  return absl::AsciiStrToLower(host);
}

absl::Status CheckHostName(absl::string_view host) {
  if (IsIpv6(host)) return absl::OkStatus();
  auto fault = FindHostNameFault(host);
  if (!fault) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(fault->what, ": \"", EscapeAscii(host), "\"; ", kNameAdvice));
}

namespace {

constexpr absl::string_view kRangeAdvice = "write ranges like node[1-4,7] or node[01-16]";

bool AllDigits(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
}

std::string TooManyAdvice() { return absl::StrCat("one list names at most ", kMaxHosts, " hosts"); }

uint64_t ToNumber(absl::string_view digits) {
  uint64_t value = 0;
  for (char c : digits) value = value * 10 + static_cast<uint64_t>(c - '0');
  return value;
}

}  // namespace

HostPattern HostPattern::Literal(absl::string_view host) {
  HostPattern pattern;
  pattern.pieces_.push_back({std::string(host), {}});
  return pattern;
}

absl::StatusOr<HostPattern::Range> HostPattern::ParseRange(const Source& source, Position at,
                                                           absl::string_view text) {
  constexpr size_t kMaxDigits = 18;  // fits in 64 bits
  size_t dash = text.find('-');
  absl::string_view low = text.substr(0, dash);
  absl::string_view high = dash == absl::string_view::npos ? low : text.substr(dash + 1);
  if (text.find('/') != absl::string_view::npos) {
    return source.Error(at, "ranges with steps are not supported", text,
                        "list the numbers instead");
  }
  if (!AllDigits(low) || !AllDigits(high)) {
    return source.Error(at, "not a range of numbers", text, kRangeAdvice);
  }
  if (low.size() > kMaxDigits || high.size() > kMaxDigits) {
    return source.Error(at, "number too long in a range", text,
                        absl::StrCat("use at most ", kMaxDigits, " digits"));
  }
  Range range{ToNumber(low), ToNumber(high), low.size()};
  if (range.high < range.low) {
    return source.Error(at, "range runs backwards", text, "write the lower number first");
  }
  return range;
}

absl::StatusOr<std::vector<HostPattern::Range>> HostPattern::ParseGroup(const Source& source,
                                                                        Position at,
                                                                        absl::string_view text) {
  std::vector<Range> ranges;
  uint64_t count = 0;
  for (size_t start = 0; start <= text.size();) {
    size_t end = std::min(text.find(',', start), text.size());
    absl::string_view item = text.substr(start, end - start);
    auto range = ParseRange(source, at.Plus(start), item);
    if (!range.ok()) return range.status();
    count += range->high - range->low + 1;  // both at most 18 digits, and checked each time
    if (count > kMaxHosts) {
      return source.Error(at.Plus(start), "range names too many hosts", item, TooManyAdvice());
    }
    ranges.push_back(*range);
    start = end + 1;
  }
  return ranges;
}

absl::StatusOr<HostPattern> HostPattern::Parse(const Source& source, Position at,
                                               absl::string_view text) {
  HostPattern pattern;
  // The name with zeros where the groups stand: decides whether the expanded names are valid, at
  // the same offsets as in `text`.
  std::string sample(text);
  size_t longest = 0;
  for (size_t start = 0; start < text.size();) {
    size_t open = text.find('[', start);
    absl::string_view before =
        text.substr(start, open == absl::string_view::npos ? open : open - start);
    longest += before.size();
    pattern.pieces_.push_back({std::string(before), {}});
    if (open == absl::string_view::npos) break;
    size_t close = text.find(']', open);
    if (close == absl::string_view::npos) {
      return source.Error(at.Plus(open), "'[' without ']'", text, kRangeAdvice);
    }
    auto ranges = ParseGroup(source, at.Plus(open + 1), text.substr(open + 1, close - open - 1));
    if (!ranges.ok()) return ranges.status();
    uint64_t count = 0;
    size_t digits = 0;
    for (const Range& range : *ranges) {
      count += range.high - range.low + 1;
      digits = std::max({digits, range.width, absl::StrCat(range.high).size()});
    }
    longest += digits;
    pattern.count_ *= count;  // at most kMaxHosts squared
    if (pattern.count_ > kMaxHosts) {
      return source.Error(at.Plus(open), "ranges name too many hosts", text, TooManyAdvice());
    }
    pattern.pieces_.back().ranges = *std::move(ranges);
    std::fill(sample.begin() + open, sample.begin() + close + 1, '0');
    if (longest > kMaxNameLength) break;
    start = close + 1;
  }
  if (longest > kMaxNameLength) {
    return source.Error(at, "host name is too long", text,
                        absl::StrCat("names have at most ", kMaxNameLength, " characters"));
  }
  // Not the length: a group's text may be longer than the numbers it stands for.
  if (auto fault = FindHostNameFault(sample, sample.size())) {
    return source.Error(at.Plus(fault->offset), fault->what, text, kNameAdvice);
  }
  return pattern;
}

absl::Status HostPattern::Expand(absl::FunctionRef<absl::Status(std::string)> visit) const {
  return ExpandFrom(0, "", visit);
}

absl::Status HostPattern::ExpandFrom(size_t piece, const std::string& prefix,
                                     absl::FunctionRef<absl::Status(std::string)> visit) const {
  // As deep as there are groups, each of which adds to a name of at most 253 characters.
  if (piece == pieces_.size()) return visit(prefix);
  std::string start = prefix + pieces_[piece].text;
  if (pieces_[piece].ranges.empty()) return ExpandFrom(piece + 1, start, visit);
  for (const Range& range : pieces_[piece].ranges) {
    for (uint64_t number = range.low; number <= range.high; ++number) {
      std::string digits = absl::StrCat(number);
      size_t zeros = range.width > digits.size() ? range.width - digits.size() : 0;
      absl::Status status =
          ExpandFrom(piece + 1, absl::StrCat(start, std::string(zeros, '0'), digits), visit);
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace dtrain::hosts
