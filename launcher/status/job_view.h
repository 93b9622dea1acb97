// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/view/columns.h"
#include "launcher/report/facts.h"
#include "launcher/status/log_tails.h"

// A job as programs see it: the answers of the status server. docs/api.md is their description.
// Pure.
namespace dtrain::status {

// What JobFacts does not know.
struct JobIdentity {
  std::string id;
  std::vector<std::string> argv;
  pid_t launcher_pid = 0;
  TimePoint begin;
  int64_t begin_unix_nanos = 0;
};

nlohmann::ordered_json JobView(const JobIdentity& job, const report::JobFacts& facts,
                               TimePoint now);
nlohmann::ordered_json OrderView(const LogTails& logs, Rank rank);
nlohmann::ordered_json RanksView(const report::JobFacts& facts, const LogTails& logs);
nlohmann::ordered_json RankView(const report::JobFacts& facts, Rank rank, const LogTails& logs);
nlohmann::ordered_json NodesView(const report::JobFacts& facts);
// What of the job as a whole changes all the time: some of JobView, the same however many nodes
// there are.
nlohmann::ordered_json SummaryView(const JobIdentity& job, const report::JobFacts& facts,
                                   TimePoint now);
// Everything in its columns, as it is now.
void UpdateColumns(const report::JobFacts& facts, view::Columns& columns);
// How long each rank has waited in collectives, as far as libdtrain has told.
std::vector<std::optional<uint64_t>> WaitNanos(const report::JobFacts& facts);
// In OpenMetrics 1.0, or in Prometheus' older text format, whose families of counters have other
// names.
std::string MetricsText(const JobIdentity& job, const report::JobFacts& facts, TimePoint now,
                        bool openmetrics);

}  // namespace dtrain::status
