// SPDX-License-Identifier: Apache-2.0
// What a worker leaves in TORCHELASTIC_ERROR_FILE, as the launcher reads and shows it.
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "launcher/report/failure_report.h"
#include "launcher/report/worker_error.h"
#include "tests/fuzz/expect.h"

namespace {

using dtrain::report::ParseErrorFile;
using dtrain::report::ShowsTraceback;

// The whole report, as a job with this worker would end.
void ExpectFitForATerminal(absl::string_view bytes) {
  const std::vector<dtrain::job::NodeView> nodes(1);
  std::vector<dtrain::job::RankEnd> ranks(1);
  ranks[0].ended = true;
  ranks[0].exit.set_exit_code(1);
  ranks[0].exit.set_error_file(std::string(bytes));
  dtrain::job::Verdict verdict;
  verdict.kind = dtrain::job::Verdict::Kind::kWorker;
  verdict.exit_code = 1;
  const std::string report = dtrain::report::FailureReport(
      {dtrain::job::State::kFinished, nodes, ranks, {}, verdict, 0, {}});
  for (char c : report) {
    DTRAIN_CHECK((static_cast<unsigned char>(c) >= ' ' && c != 0x7f) || c == '\n' || c == '\t');
  }
  for (absl::string_view line : absl::StrSplit(report, '\n')) {
    DTRAIN_CHECK(line.substr(0, 8) == "dtrain: " || line.substr(0, 4) == "  | ");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text = dtrain::fuzz::Text(data, size);
  ExpectFitForATerminal(text);
  const auto error = ParseErrorFile(text);
  if (!error.ok()) {
    dtrain::fuzz::ExpectPrintable(error.status());
    return 0;
  }
  DTRAIN_CHECK(!error->message.empty());
  DTRAIN_CHECK(ShowsTraceback(error->traceback, error->traceback));
  return 0;
}
