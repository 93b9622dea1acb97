// SPDX-License-Identifier: Apache-2.0
#include "launcher/env/env.h"

#include <cstdio>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/exit_code.h"
#include "common/base/text.h"
#include "launcher/cli/words.h"
#include "launcher/env/origin.h"
#include "launcher/self/launches.h"

namespace dtrain::env {
namespace {

// What a worker that does this prints; the environment, which has NULs and may have anything else,
// comes first.
constexpr const char* kPrints[] = {"/bin/cat", "/proc/self/environ", "/proc/self/stat",
                                   "/proc/self/status", "/proc/self/limits"};

cli::Flag RankFlag() {
  return {"--rank", "Flags", "R", "the rank whose environment is printed, default 0", nullptr};
}

struct Request {
  bool help = false;
  std::string rank = "0";
  std::vector<std::string> flags;  // of dtrain launch
  std::vector<std::string>
      programs;  // what follows them: a program that prints, for each of theirs
};

// The programs are replaced by one that prints; of each, its flags stay.
absl::StatusOr<Request> Parse(const std::vector<std::string>& args) {
  std::vector<cli::Flag> flags = cli::LaunchFlags();
  flags.push_back(RankFlag());
  Request request;
  std::vector<std::string> rest = args;
  for (bool first = true; first || !rest.empty(); first = false) {
    absl::StatusOr<cli::Words> words = cli::SplitWords(flags, rest);
    if (!words.ok()) return words.status();
    std::vector<std::string> own;
    for (size_t i = 0; i < words->flags.size(); ++i) {
      const std::string& word = words->flags[i];
      if (word == "--help" || word == "--help-all") request.help = true;
      if (word == "--rank") {
        request.rank = words->flags[++i];
      } else if (word != "--module") {
        own.push_back(word);
      }
    }
    if (first) {
      request.flags = std::move(own);
    } else {
      request.programs.emplace_back(":");
      request.programs.insert(request.programs.end(), own.begin(), own.end());
    }
    for (const char* word : kPrints) request.programs.emplace_back(word);
    rest = std::move(words->further);
  }
  uint32_t rank = 0;
  if (!absl::SimpleAtoi(request.rank, &rank)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rank: \"", Escape(request.rank, 60), "\" is not a rank"));
  }
  return request;
}

int UsageError(const absl::Status& status) {
  std::fprintf(stderr, "dtrain: env: %s\nSee dtrain env --help\n",
               std::string(status.message()).c_str());
  return kExitUsage;
}

}  // namespace

cli::Page EnvPage() {
  cli::Page page;
  page.command = "dtrain env";
  page.text =
      "Prints the environment that a worker would get, grouped by where each variable comes from,\n"
      "and its umask, nice, CPUs and limits.\n";
  page.usage = "dtrain env [--rank R] [FLAGS OF dtrain launch] [--] [COMMAND]";
  page.more =
      "It starts the job that the flags describe, with a program that prints its environment in "
      "place\n"
      "of yours. Ports and the job's id differ from one start to the next.\n";
  page.examples = R"(  dtrain env -np 4
  dtrain env --hostfile hosts.txt --rank 9 --contract torch
)";
  page.flags = {RankFlag(), {"--help,-h", "Flags", "", "print this help", nullptr}};
  page.notes = "All flags of dtrain launch work too.\n";
  page.operand = cli::Page::Operand::kProgram;
  return page;
}

int Run(const std::vector<std::string>& args, const cli::Surroundings& surroundings) {
  absl::StatusOr<Request> request = Parse(args);
  if (!request.ok()) return UsageError(request.status());
  if (request->help) {
    std::fputs(cli::FormatHelp(EnvPage()).c_str(), stdout);
    return kExitOk;
  }
  std::vector<std::string> words = {"launch"};
  words.insert(words.end(), request->flags.begin(), request->flags.end());
  for (const char* word : {"--tag-output", "none", "--stdin", "none", "--show-ranks"}) {
    words.emplace_back(word);
  }
  words.push_back(request->rank);
  words.insert(words.end(), request->programs.begin(), request->programs.end());
  const absl::StatusOr<cli::Command> command = cli::ParseLaunch(words, surroundings);
  if (!command.ok()) return UsageError(command.status());

  words.insert(words.begin(), self::OwnPath());
  std::string printed;
  const absl::StatusOr<self::LaunchEnd> end =
      self::RunLaunch(words, surroundings.environment, [&](absl::string_view line) {
        absl::StrAppend(&printed, printed.empty() ? "" : "\n", line);
      });
  if (!end.ok()) {
    std::fprintf(stderr, "dtrain: env: %s\n", std::string(end.status().message()).c_str());
    return kExitStartAgents;
  }
  if (end->code != kExitOk) return end->code;
  std::vector<std::string> variables =
      absl::StrSplit(printed, absl::ByChar('\0'), absl::SkipEmpty());
  const std::string process = variables.empty() ? "" : std::move(variables.back());
  if (variables.size() < 2) {
    std::fprintf(stderr, "dtrain: env: the job has no rank %s\n", request->rank.c_str());
    return kExitUsage;
  }
  variables.pop_back();
  std::fputs(FormatEnvironment(variables, command->launch.job.part).c_str(), stdout);
  std::fputs(FormatProcess(process).c_str(), stdout);
  return kExitOk;
}

}  // namespace dtrain::env
