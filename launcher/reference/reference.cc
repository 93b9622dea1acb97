// SPDX-License-Identifier: Apache-2.0
#include "launcher/reference/reference.h"

#include <cstdio>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"
#include "common/base/text.h"
#include "launcher/reference/complete.h"
#include "launcher/reference/man.h"
#include "launcher/reference/scripts.h"
#include "launcher/status/runtime_dir.h"

namespace dtrain::reference {
namespace {

std::vector<std::string> RunningJobs() {
  std::vector<std::string> ids;
  const absl::StatusOr<std::string> directory = status::RuntimeDirectory();
  if (!directory.ok()) return ids;
  for (const status::LiveJob& job : status::FindJobs(*directory)) ids.push_back(job.id);
  return ids;
}

// `dtrain completion words WORD...`, which the scripts ask.
std::string AnswerShell(const std::vector<Command>& commands,
                        const std::vector<std::string>& typed) {
  return FormatCompletion(Complete(commands, typed, RunningJobs()));
}

absl::StatusOr<std::string> Page(const std::vector<Command>& commands, const std::string& name,
                                 const Release& release) {
  for (const Command& command : commands) {
    if (ManPageName(command) == name) return FormatManPage(commands, command, release);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no manual page ", dtrain::Escape(name, 60), "; dtrain man lists them"));
}

std::string PageNames(const std::vector<Command>& commands) {
  std::string out;
  for (const Command& command : commands) absl::StrAppend(&out, ManPageName(command), "\n");
  return out;
}

absl::StatusOr<std::string> Answer(const std::vector<Command>& commands,
                                   const std::vector<std::string>& args, const Release& release) {
  if (args.size() > 2 && args[0] == "completion" && args[1] == "words") {
    return AnswerShell(commands, {args.begin() + 2, args.end()});
  }
  if (args.size() == 2 && (args[1] == "--help" || args[1] == "-h")) {
    return cli::FormatHelp(Find(commands, args[0])->page);
  }
  if (args[0] == "man" && args.size() == 1) return PageNames(commands);
  if (args[0] == "man" && args.size() == 2) return Page(commands, args[1], release);
  if (args[0] == "completion" && args.size() == 2) {
    const absl::string_view script = CompletionScript(args[1]);
    if (!script.empty()) return std::string(script);
  }
  return absl::InvalidArgumentError(args[0] == "man" ? "one page at a time"
                                                     : "name a shell: bash, zsh or fish");
}

}  // namespace

int RunCommand(const std::vector<Command>& commands, const std::vector<std::string>& args,
               const Release& release) {
  const absl::StatusOr<std::string> answer = Answer(commands, args, release);
  if (!answer.ok()) {
    std::fprintf(stderr, "dtrain: %s: %s\n", args[0].c_str(),
                 std::string(answer.status().message()).c_str());
    return kExitUsage;
  }
  std::fwrite(answer->data(), 1, answer->size(), stdout);
  return kExitOk;
}

}  // namespace dtrain::reference
