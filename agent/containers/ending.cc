// SPDX-License-Identifier: Apache-2.0
#include "agent/containers/ending.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/exit_code.h"

namespace dtrain::containers {
namespace {

constexpr int kLastSignal = 64;
// Of podman and docker: they themselves failed, as did what was before the program.
constexpr int kClientFailed = 125;

absl::string_view LastLine(absl::string_view text) {
  text = absl::StripTrailingAsciiWhitespace(text);
  const size_t newline = text.rfind('\n');
  return newline == absl::string_view::npos ? text : text.substr(newline + 1);
}

// Behind what is wrong with its command line there is a word of advice.
absl::string_view PodmansLine(absl::string_view text) {
  const absl::string_view last = LastLine(text);
  if (!absl::StartsWith(last, "See 'podman ")) return last;
  return LastLine(text.substr(0, static_cast<size_t>(last.data() - text.data())));
}

// Of several lines, docker's reason stands before the advice at the end.
absl::string_view DockersLine(absl::string_view text) {
  absl::string_view found;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::StartsWith(line, "docker: ")) found = line;
  }
  return found;
}

int CodeFor(absl::string_view why, int client_code) {
  const bool missing =
      absl::StrContains(why, "not found") || absl::StrContains(why, "o such file or directory");
  if (client_code == kExitNotFound) return kExitNotFound;
  const bool of_program = absl::StrContains(why, "exec") || absl::StrContains(why, "stat ");
  if (missing && of_program) return kExitNotFound;
  const bool denied = absl::StrContains(why, "ermission denied");
  return of_program && denied ? kExitNotExecutable : kExitStartAgents;
}

}  // namespace

os::ExitStatus ProgramStatus(const os::ExitStatus& client) {
  os::ExitStatus program = client;
  if (client.signal == 0 && client.code > kExitSignalBase &&
      client.code <= kExitSignalBase + kLastSignal) {
    program.signal = client.code - kExitSignalBase;
    program.code = 0;
  }
  return program;
}

std::optional<NotStarted> WhyNotStarted(const Chosen& chosen, const os::ExitStatus& client,
                                        absl::string_view stderr_tail) {
  if (client.signal != 0 || client.code == 0) return std::nullopt;
  const bool reserved = client.code >= kClientFailed && client.code <= kExitNotFound;
  absl::string_view line = LastLine(stderr_tail);
  bool its_own = false;
  switch (chosen.runtime) {
    case Runtime::kPodman: {
      line = PodmansLine(stderr_tail);
      // Its init, which is in the container already.
      const bool init =
          absl::StartsWith(line, "ERROR (catatonit:") && absl::StrContains(line, "failed to exec");
      its_own = init || (reserved && absl::StartsWith(line, "Error: "));
      break;
    }
    case Runtime::kDocker:
      line = DockersLine(stderr_tail);
      its_own = reserved && !line.empty();
      break;
    case Runtime::kApptainer:
      its_own = absl::StartsWith(line, "FATAL:") || absl::StartsWith(line, "ERROR  :");
      break;
    case Runtime::kEnroot:
      // Programs write "[ERROR]" too, behind a time. enroot colours it on terminals only.
      its_own = absl::StartsWith(line, "[ERROR] ") || absl::StartsWith(line, "enroot-");
      break;
  }
  if (!its_own) return std::nullopt;
  return NotStarted{std::string(line), CodeFor(line, client.code)};
}

}  // namespace dtrain::containers
