// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/host_list_builder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "launcher/hosts/host_name.h"
#include "launcher/hosts/hostfile.h"

namespace dtrain::hosts {
namespace {

constexpr uint32_t kUsualSshPort = 22;
constexpr uint32_t kFirstUserPort = 1024;  // an ssh server elsewhere has one from here on
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
  spec.slots_like_port = *slots == kUsualSshPort || *slots >= kFirstUserPort;
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

namespace {

absl::string_view WayName(Way way) { return way == Way::kTcp ? "tcp" : "ssh"; }

}  // namespace

absl::Status HostListBuilder::Add(const HostSpec& spec) {
  // Counted over the whole list, also when the names repeat: many lines that each expand to the
  // same 65536 names would take hours.
  if (spec.pattern.count() > 1) expanded_ += spec.pattern.count();
  if (expanded_ > kMaxHosts) {
    return source_.Error(spec.at, "too many hosts", absl::StrCat(expanded_),
                         absl::StrCat("one list names at most ", kMaxHosts, " hosts"));
  }
  return spec.pattern.Expand([&](std::string host) { return AddHost(spec, std::move(host)); });
}

absl::Status HostListBuilder::AddHost(const HostSpec& spec, std::string host) {
  auto [found, is_new] = index_.try_emplace(HostKey(host), list_.entries.size());
  if (is_new) {
    if (list_.entries.size() == kMaxHosts) {
      return source_.Error(spec.at, "too many hosts", host,
                           absl::StrCat("one list names at most ", kMaxHosts, " hosts"));
    }
    HostEntry entry;
    entry.host = std::move(host);
    entry.line = spec.at.line;
    entry.column = spec.at.column;
    list_.entries.push_back(std::move(entry));
    mentions_.emplace_back();
  }
  HostEntry& entry = list_.entries[found->second];
  entry.slots_like_port = is_new && spec.slots_like_port;
  absl::Status status = Merge(spec, entry);
  if (!status.ok()) return status;

  Mentions& seen = mentions_[found->second];
  // A maximum alone says how many slots there are, as for Open MPI.
  std::optional<uint32_t> slots = spec.slots ? spec.slots : spec.max_slots;
  if (slots) {
    ++seen.with_slots;
    seen.given_slots += *slots;
  } else if (seen.without_slots++ == 0) {
    seen.bare_line = spec.at.line;
  }
  seen.max_slots += spec.max_slots ? *spec.max_slots : slots.value_or(1);
  seen.has_max = seen.has_max || spec.max_slots.has_value();
  if (seen.given_slots + seen.without_slots > kMaxSlots || seen.max_slots > kMaxSlots) {
    return source_.Error(spec.at, "too many slots for one host", entry.host,
                         absl::StrCat("one host has at most ", kMaxSlots, " slots"));
  }
  return absl::OkStatus();
}

absl::Status HostListBuilder::Merge(const HostSpec& spec, HostEntry& entry) const {
  auto conflict = [&](absl::string_view what, auto old_value, auto new_value) {
    return source_.Error(
        spec.at,
        absl::StrCat("host has ", what, " ", new_value, " here, but ", what, " ", old_value,
                     " before (first named on ", source_.Place({entry.line, entry.column}), ")"),
        entry.host, "make all mentions of a host agree");
  };
  if (!spec.user.empty()) {
    if (!entry.user.empty() && entry.user != spec.user) {
      return conflict("user", EscapeAscii(entry.user), EscapeAscii(spec.user));
    }
    entry.user = spec.user;
  }
  if (spec.port != 0) {
    if (entry.port != 0 && entry.port != spec.port) return conflict("port", entry.port, spec.port);
    entry.port = spec.port;
  }
  if (spec.way != Way::kUnsaid) {
    if (entry.way != Way::kUnsaid && entry.way != spec.way) {
      return conflict("agent", WayName(entry.way), WayName(spec.way));
    }
    entry.way = spec.way;
  }
  if (spec.gpus) {
    if (entry.gpus && *entry.gpus != *spec.gpus) return conflict("gpus", *entry.gpus, *spec.gpus);
    entry.gpus = spec.gpus;
  }
  return absl::OkStatus();
}

void HostListBuilder::SetSlots(bool lines_are_slots) {
  size_t mixed = 0;
  size_t first_mixed = 0;
  for (size_t i = 0; i < mentions_.size(); ++i) {
    const Mentions& seen = mentions_[i];
    HostEntry& entry = list_.entries[i];
    if (seen.with_slots > 0 || lines_are_slots) {
      entry.slots = static_cast<uint32_t>(seen.given_slots + seen.without_slots);
    }
    if (seen.has_max) entry.max_slots = static_cast<uint32_t>(seen.max_slots);
    if (seen.with_slots > 0 && seen.without_slots > 0 && mixed++ == 0) first_mixed = i;
  }
  if (mixed == 0) return;
  std::string others = mixed > 1 ? absl::StrCat(" (and ", mixed - 1, " more)") : "";
  list_.warnings.push_back(
      absl::StrCat(source_.name(), ": host ", list_.entries[first_mixed].host, others,
                   " is named with slots and, on line ", mentions_[first_mixed].bare_line,
                   ", without; each mention without slots counts as one slot"));
}

absl::StatusOr<HostList> HostListBuilder::Finish() && {
  if (list_.entries.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no hosts in ", source_.name(), "; name at least one"));
  }
  // The form of a PBS node file: once a host is repeated to count its slots, a single line means
  // one slot too, not "as many as there are".
  bool lines_are_slots = std::any_of(mentions_.begin(), mentions_.end(), [](const Mentions& seen) {
    return seen.without_slots > 0 && seen.without_slots + seen.with_slots > 1;
  });
  SetSlots(lines_are_slots);
  return std::move(list_);
}

}  // namespace dtrain::hosts
