// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/slurm_job.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "common/base/clock.h"
#include "launcher/transport/child.h"

namespace dtrain::cli {
namespace {

// Its controller answers at once, or squeue tries for a minute.
constexpr Duration kSqueueAnswers = std::chrono::seconds(3);
constexpr size_t kMostWritten = 4096;

bool IsNumber(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(),
                                      [](unsigned char c) { return absl::ascii_isdigit(c); });
}

// False: not to its end.
bool ReadAll(int fd, std::string& text) {
  const TimePoint deadline = Clock::now() + kSqueueAnswers;
  while (text.size() < kMostWritten) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd p{fd, POLLIN, 0};
    const int n = poll(&p, 1, static_cast<int>(std::max<int64_t>(left, 0)));
    if (n == 0) return false;
    if (n < 0 && errno != EINTR) return false;
    char buffer[512];
    const ssize_t got = n > 0 ? read(fd, buffer, sizeof(buffer)) : -1;
    if (got == 0) return true;
    if (got > 0) text.append(buffer, static_cast<size_t>(got));
  }
  return false;
}

}  // namespace

std::string SlurmJobTrouble(const std::string& id) {
  if (!IsNumber(id)) return "";
  auto child = transport::StartChild({"squeue", "--noheader", "--jobs", id, "--format", "%T"},
                                     /*stdout_apart=*/true);
  if (!child.ok()) return "";
  std::string written;
  const bool whole = ReadAll(child->error.get(), written);
  if (!whole) transport::SignalChild(child->process, SIGKILL, /*whole_group=*/true);
  const auto status = os::WaitAndReap(child->process.pidfd.get());
  if (!whole || !status.ok()) return "";
  return SlurmJobTrouble(written, status->signal == 0 && status->code == 0);
}

std::string SlurmJobTrouble(const std::string& written, bool succeeded) {
  if (absl::StrContains(written, "Invalid job id")) return "Slurm here knows no such job";
  // A job that ended lately is known, and has no line.
  if (succeeded && absl::StripAsciiWhitespace(written).empty()) return "that job has ended";
  return "";
}

}  // namespace dtrain::cli
