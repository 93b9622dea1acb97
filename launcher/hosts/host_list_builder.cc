// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/host_list_builder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "launcher/hosts/host_name.h"

namespace dtrain::hosts {

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
