// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/grid_engine.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "launcher/hosts/environment.h"
#include "launcher/hosts/host_list_builder.h"
#include "launcher/hosts/host_spec.h"
#include "launcher/hosts/source.h"

namespace dtrain::hosts {
namespace {

// `n1 4 all.q@n1 UNDEFINED`: a host, its slots, the queue and the processors. Several queues of a
// host have a line each.
absl::StatusOr<HostSpec> ParseLine(const Source& source, Position at, absl::string_view line) {
  std::vector<absl::string_view> words =
      absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
  if (words.size() < 2) {
    return source.Error(at, "host without a number of slots", words[0],
                        "Grid Engine writes HOST SLOTS QUEUE PROCESSORS");
  }
  HostSpec spec;
  spec.at = at;
  auto pattern = HostPattern::Parse(source, at, words[0]);
  if (!pattern.ok()) return pattern.status();
  spec.pattern = *std::move(pattern);
  const auto column = static_cast<size_t>(words[1].data() - line.data());
  auto slots = ParseNumber(source, at.Plus(column), "slots", words[1], 1, kMaxSlots);
  if (!slots.ok()) return slots.status();
  spec.slots = *slots;
  return spec;
}

}  // namespace

absl::StatusOr<Allocation> ReadGridEngine(const EnvLookup& env, const FileReader& read) {
  const std::string path = Get(env, "PE_HOSTFILE");
  absl::StatusOr<std::string> text = read(path);
  if (!text.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "PE_HOSTFILE is set but cannot be used (", text.status().message(),
        "), so the hosts of the Grid Engine job are not known; name them with --hosts or "
        "--hostfile, or unset PE_HOSTFILE"));
  }
  Source source = Source::File(path);
  HostListBuilder builder(source);
  Position at;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    if (line.find_first_not_of(" \t\r") != absl::string_view::npos) {
      auto spec = ParseLine(source, at, line);
      if (!spec.ok()) return spec.status();
      absl::Status status = builder.Add(*spec);
      if (!status.ok()) return status;
    }
    ++at.line;
  }
  auto hosts = std::move(builder).Finish();
  if (!hosts.ok()) return hosts.status();
  // Without -nostdin, which Open MPI adds, qrsh passes on our stream.
  return Allocation{"Grid Engine", *std::move(hosts), "qrsh -inherit -V {host}"};
}

}  // namespace dtrain::hosts
