// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "dtrain/v1/journal.pb.h"
#include "launcher/detached/job_folder.h"

namespace dtrain::story {

// All of a job as JSON: what was asked for, who controls it, its attempts and their causes, how it
// ended (docs/detached.md lists the fields). What cannot be read is named in `problems`. NOT_FOUND:
// its folder is gone.
absl::StatusOr<nlohmann::ordered_json> Tell(const detached::JobFolder& job);

// "running", "restarting" ..., as far as the journal says.
absl::string_view PhaseName(v1::JournalState::Phase phase);

// The words of its command line, without the program's own name.
std::vector<std::string> WordsOf(const v1::Spec& spec);
// As they may be shown (MaskedWords).
std::vector<std::string> ShownWordsOf(const v1::Spec& spec);

// When the job's last launcher was last seen to do something, if it ever was.
std::optional<absl::Time> LastSign(const detached::JobFolder& job);

// "process 42 on login1, since 2026-11-27 01:02:03, generation 2"; what is not known is left out.
std::string Describe(const v1::Launcher& launcher);

}  // namespace dtrain::story
