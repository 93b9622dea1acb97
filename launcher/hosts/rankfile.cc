// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/rankfile.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/cpulist.h"
#include "launcher/hosts/host_name.h"
#include "launcher/hosts/source.h"

namespace dtrain::hosts {
namespace {

constexpr absl::string_view kLineAdvice = "write lines like rank 0=host slot=0-3";

absl::StatusOr<std::string> ParseCpus(const Source& source, Position at, absl::string_view text) {
  if (text.find(':') != absl::string_view::npos) {
    return source.Error(at, "socket:core pairs are not supported", text,
                        "write cpus as the kernel numbers them, 0-3,8");
  }
  // ParseCpuList skips white space around it, and would take a lone CR for an empty list.
  bool plain = text.find_first_not_of("0123456789,-") == absl::string_view::npos;
  if (text.empty() || !plain || !ParseCpuList(text).ok()) {
    return source.Error(at, text.empty() ? "slot has no value" : "not a list of cpus", text,
                        "write cpus as the kernel numbers them, 0-3,8");
  }
  return std::string(text);
}

absl::StatusOr<RankPlace> ParseLine(const Source& source, LineReader& line) {
  RankPlace place;
  Position at = line.position();
  absl::string_view word = line.Take();
  if (word != "rank") return source.Error(at, "not a rank line", word, kLineAdvice);
  at = line.position();
  place.line = at.line;
  auto rank = ParseNumber(source, at, "rank", line.Take("="), 0, kMaxRanks - 1);
  if (!rank.ok()) return rank.status();
  place.rank = *rank;
  if (!line.TakeChar('=')) return source.Error(at, "rank has no host", "", kLineAdvice);
  at = line.position();
  absl::string_view host = line.Take();
  auto fault = IsIpv6(host) ? std::nullopt : FindHostNameFault(host);
  if (fault) return source.Error(at.Plus(fault->offset), fault->what, host, kNameAdvice);
  place.host = std::string(host);
  if (line.AtEnd()) return place;

  at = line.position();
  absl::string_view key = line.Take("=");
  if ((key != "slot" && key != "slots") || !line.TakeChar('=')) {
    return source.Error(at, "unknown setting of a rank", key, kLineAdvice);
  }
  Position cpus_at = line.position();
  auto cpus = ParseCpus(source, cpus_at, line.Take());
  if (!cpus.ok()) return cpus.status();
  place.cpus = *std::move(cpus);
  if (!line.AtEnd()) {
    at = line.position();
    return source.Error(at, "text after the cpus of a rank", line.Take(), kLineAdvice);
  }
  return place;
}

// Sorted by rank, and ranks with equal number by line.
absl::Status CheckRanks(const Source& source, const std::vector<RankPlace>& places) {
  for (size_t i = 0; i < places.size(); ++i) {
    const RankPlace& place = places[i];
    if (place.rank == i) continue;
    Position at{place.line, 1};
    if (i > 0 && places[i - 1].rank == place.rank) {
      return source.Error(at, "rank is given twice", absl::StrCat(place.rank),
                          absl::StrCat("it is also on line ", places[i - 1].line));
    }
    return source.Error(at, absl::StrCat("rank ", i, " is missing, the next one is"),
                        absl::StrCat(place.rank), "number the ranks from 0 without gaps");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<RankPlace>> ParseRankfile(absl::string_view text,
                                                     absl::string_view name) {
  Source source = Source::File(name);
  LineReader line(source, text);
  std::vector<RankPlace> places;
  while (line.NextLine()) {
    auto place = ParseLine(source, line);
    if (!place.ok()) return place.status();
    places.push_back(*std::move(place));
  }
  if (!line.status().ok()) return line.status();
  if (places.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no ranks in ", source.name(), "; ", kLineAdvice));
  }
  std::stable_sort(places.begin(), places.end(),
                   [](const RankPlace& a, const RankPlace& b) { return a.rank < b.rank; });
  absl::Status status = CheckRanks(source, places);
  if (!status.ok()) return status;
  return places;
}

}  // namespace dtrain::hosts
