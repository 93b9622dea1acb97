// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/strings/string_view.h"

// Our own log lines, on stderr: what went on inside dtrain, for who looks after it. Not for
// messages to the user of a launch (launcher/report) and not for workers' output. Any thread.
namespace dtrain::log {

enum class Level { kDebug, kInfo, kWarning, kError };

// `who` stands in every line: "dtrain", "agent node3", "shepherd". Lines below `least` are dropped.
void Init(absl::string_view who, Level least);

void Debug(absl::string_view message);
void Info(absl::string_view message);
void Warn(absl::string_view message);
void Error(absl::string_view message);

}  // namespace dtrain::log
