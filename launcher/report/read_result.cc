// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/read_result.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "launcher/job/outcome.h"

namespace dtrain::report {

std::string ReportOf(absl::string_view result_json) {
  const auto json = nlohmann::json::parse(result_json, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return "";
  const auto report = json.find("report");
  if (report == json.end() || !report->is_string()) return "";
  // The file may have been changed since: what it says goes to a terminal.
  const auto printable = [](std::string* out, absl::string_view line) {
    out->append(job::Printable(line));
  };
  return absl::StrJoin(absl::StrSplit(report->get_ref<const std::string&>(), '\n'), "\n",
                       printable);
}

}  // namespace dtrain::report
