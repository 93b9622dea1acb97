// SPDX-License-Identifier: Apache-2.0
#include "launcher/migrate/commands.h"

#include <cstdio>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/exit_code.h"
#include "launcher/migrate/arrive.h"
#include "launcher/migrate/depart.h"
#include "launcher/migrate/options.h"
#include "launcher/story/find.h"

namespace dtrain::migrate {
namespace {

int Fail(const absl::Status& status, int code) {
  std::fprintf(stderr, "dtrain: migrate: %s\n", std::string(status.message()).c_str());
  return code;
}

absl::StatusOr<detached::JobFolder> Meant(const detached::Jobs& jobs, const std::string& text) {
  if (!text.empty()) return jobs.Find(text);
  const auto running = story::Running(jobs);
  if (!running.ok()) return running.status();
  const auto id = story::OnlyOneFromHere(*running, "migrate --to HOST");
  if (!id.ok()) return id.status();
  return jobs.Find(*id);
}

}  // namespace

int RunCommand(const std::vector<std::string>& args) {
  const auto options = Parse(args);
  if (!options.ok()) {
    std::fprintf(stderr, "dtrain: %s\n", std::string(options.status().message()).c_str());
    return kExitUsage;
  }
  if (!options->help.empty()) {
    std::fputs(options->help.c_str(), stdout);
    return kExitOk;
  }
  if (options->receives) return Arrive();
  const auto jobs = story::OpenJobs();
  if (!jobs.ok()) return Fail(jobs.status(), story::ExitCodeOf(jobs.status()));
  const auto job = Meant(*jobs, options->job);
  if (!job.ok()) return Fail(job.status(), story::ExitCodeOf(job.status()));
  const absl::Status left = Depart(*jobs, *job, *options);
  return left.ok() ? kExitOk : Fail(left, 1);
}

}  // namespace dtrain::migrate
