// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "launcher/report/failure_report.h"
#include "launcher/report/result_json.h"
#include "launcher/report/write_result.h"
#include "tests/unit/report/facts_fixture.h"

namespace dtrain::report {
namespace {

class ReadResultTest : public FactsTest {
 protected:
  void ExpectTheSame() {
    const std::string report = FailureReport(Facts());
    EXPECT_EQ(ReportOf(ResultJson(Facts(), "job-1", At(0))), report);
  }
};

TEST_F(ReadResultTest, TheReportIsThatOfTheLaunch) {
  verdict_.kind = job::Verdict::Kind::kSuccess;
  ExpectTheSame();
  verdict_.kind = job::Verdict::Kind::kNode;
  verdict_.exit_code = 202;
  verdict_.message = "node2 was lost";
  ExpectTheSame();
  verdict_.kind = job::Verdict::Kind::kWorker;
  verdict_.message = "";
  verdict_.rank = Rank(3);
  verdict_.exit_code = 7;
  v1::WorkerExit& exit = End(3);
  exit.set_exit_code(7);
  exit.set_monotonic_nanos(12'340'000'000);
  exit.set_stderr_tail("Traceback:\n  boom\x1b[2J\n");
  End(0).set_signal(15);
  End(1).set_exit_code(1);
  secondary_deaths_ = 2;
  ExpectTheSame();
  exit.set_error_file(
      R"({"message": {"message": "ValueError: x", "extraInfo": {"py_callstack": "a\nb\nc"}}})");
  ExpectTheSame();
  exit.set_exit_code(0);
  exit.set_signal(9);
  exit.set_out_of_memory(true);
  exit.set_memory_limit_bytes(64 << 20);
  ExpectTheSame();
}

TEST_F(ReadResultTest, WhateverIsInTheFileIsNoMoreThanText) {
  for (const char* text : {"", "{", "7", "[]", "null", R"({"report": 7})"}) {
    EXPECT_EQ(ReportOf(text), "") << text;
  }
  EXPECT_EQ(ReportOf("{\"report\": \"a\\u001b[2Jb\\nc\"}").find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace dtrain::report
