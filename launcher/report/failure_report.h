// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "dtrain/v1/job.pb.h"
#include "launcher/report/facts.h"

namespace dtrain::report {

// Why the job ended, for stderr: who failed first and how, its exception and its last lines, how
// many failed after it, the exit code. Several lines, each whole, without a newline at the end;
// empty after a success. Valid after Finish. Pure.
std::string FailureReport(const JobFacts& facts);

// "exited with code 7", "was killed by signal 11 (SIGSEGV)", "was killed by the kernel: out of
// memory", "called abort with code 3".
std::string DescribeEnd(const v1::WorkerExit& exit);

// The same of the rank that is blamed, which may have been ended by us, and with who sent the
// signal that we have passed on to it.
std::string DescribeBlamed(const JobFacts& facts, const job::RankEnd& blamed);

// The end of a worker's stderr as lines that a terminal shows as they are: control bytes escaped,
// of a line that was overwritten by carriage returns only the last state.
std::string FormatTail(absl::string_view tail);

}  // namespace dtrain::report
