// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/loop/loop.h"
#include "dtrain/v1/journal.pb.h"
#include "launcher/cli/options.h"
#include "launcher/job_records.h"

// Jobs that go on without their terminal: what `dtrain launch -d` does here and now, and how the
// launcher that it starts gets to know what was asked for.
namespace dtrain {

// Into the spec goes what else was asked for, and by whom. Looks the user up.
void Describe(const cli::LaunchOptions& launch, v1::Spec& spec);

// Makes a job of the spec, which then exists whatever happens to us, starts its launcher, and waits
// until the workers run or it has ended; with --launcher-on there. Returns the exit code of
// `dtrain launch -d`.
int LaunchDetached(const cli::LaunchOptions& options, v1::Spec spec);

// What our own environment lacks of that with which the job was launched: for ssh, which we run,
// and for where answers are given. systemd's manager knows nothing of it.
void AddToEnvironment(const v1::Spec& spec);

// The job that the command line of `dtrain resume` names, for us. Blocks.
absl::StatusOr<std::unique_ptr<JobRecords>> TakeJob(loop::Loop& loop,
                                                    const std::vector<std::string>& args);
// What its launcher does with what was asked for: the workers' output goes to its folder, and to
// files that the user wants besides, not to our log.
cli::LaunchOptions OptionsOf(const JobRecords& records, cli::LaunchOptions asked);
// Why a launcher was started for nothing: says so, returns its exit code.
int TellWhyNot(const absl::Status& why);

}  // namespace dtrain
