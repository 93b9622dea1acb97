// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/left_workers.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "launcher/cli/recorded.h"
#include "launcher/status/tables.h"
#include "launcher/story/find.h"

namespace dtrain::status {
namespace {

constexpr size_t kMostOfLostHost = 255;
// --away, where nothing is started again.
constexpr Duration kUsualAway = std::chrono::hours(1);

std::vector<std::string> LostHosts(const detached::JobFolder& job) {
  std::vector<std::string> lost;
  const auto summary = job.ReadSummary();
  if (!summary.ok()) return lost;
  const auto json = nlohmann::ordered_json::parse(*summary, nullptr, /*allow_exceptions=*/false);
  for (const nlohmann::ordered_json& node : At(json, "nodes")) {
    if (At(node, "lost") == nlohmann::ordered_json(true)) {
      lost.push_back(Text(At(node, "host"), kMostOfLostHost));
    }
  }
  return lost;
}

}  // namespace

absl::StatusOr<std::optional<LeftWorkers>> FindLeftWorkers(const detached::JobFolder& job) {
  LeftWorkers left;
  left.job = job.id();
  // Its summary may be large: it comes last, where all else is known.
  const auto unless_whole =
      [&](const absl::Status& why) -> absl::StatusOr<std::optional<LeftWorkers>> {
    if (LostHosts(job).empty()) return std::nullopt;
    return why;
  };
  const auto spec = job.ReadSpec();
  if (!spec.ok()) return unless_whole(spec.status());
  // Without its launcher workers end with the lease.
  if (spec->foreground()) return std::nullopt;
  const auto entry = job.Entry();
  if (!entry.ok()) return unless_whole(entry.status());
  // With the ways that it was launched with. Of its environment only the flags are kept.
  cli::Surroundings then = cli::SurroundingsOf(*spec);
  then.environment = cli::WithFlagVariablesOf(*spec, cli::ProcessSurroundings().environment);
  auto command = cli::ParseLaunch({spec->argv().begin(), spec->argv().end()}, then);
  if (!command.ok()) return unless_whole(command.status());
  left.launch = std::move(command->launch);
  const job::JobOptions& options = left.launch.job;
  left.gone = absl::FromUnixNanos(entry->ended_unix_nanos()) +
              absl::FromChrono(
                  std::max<Duration>(left.launch.detach.away.value_or(kUsualAway), options.lease) +
                  options.grace);
  if (absl::Now() <= left.gone) left.hosts = LostHosts(job);
  if (left.hosts.empty()) return std::nullopt;
  return left;
}

std::string TextOf(const LeftWorkers& left) {
  return absl::StrCat(left.job, " has lost ", absl::StrJoin(left.hosts, ", "),
                      ", where its workers may live on until ",
                      story::ShownTime(absl::ToUnixNanos(left.gone)));
}

std::string LeftWorkersOf(const detached::JobFolder& job) {
  const auto left = FindLeftWorkers(job);
  if (!left.ok() || !*left) return "";
  return absl::StrCat(TextOf(**left), ": `dtrain stop ", job.id(), "` ends them");
}

}  // namespace dtrain::status
