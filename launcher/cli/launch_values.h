// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "launcher/cli/flag_table.h"

// The flags of a launch whose values are more than one number or word. Pure.
namespace dtrain::cli {

absl::Status SetNodes(absl::string_view value, RawLaunch& out);
absl::Status SetRestartOn(absl::string_view value, RawLaunch& out);
absl::Status SetScaleUp(absl::string_view value, RawLaunch& out);
absl::Status SetBackoff(absl::string_view value, RawLaunch& out);
absl::Status SetStateDir(absl::string_view value, RawLaunch& out);
absl::Status SetRanks(absl::string_view value, RawLaunch& out);
absl::Status SetMapBy(absl::string_view value, RawLaunch& out);
absl::Status SetPerNode(absl::string_view value, RawLaunch& out);
absl::Status SetContracts(absl::string_view value, RawLaunch& out);
absl::Status SetEmulation(absl::string_view value, RawLaunch& out);
absl::Status SetTensorflow(absl::string_view value, RawLaunch& out);
absl::Status SetModule(absl::string_view value, RawLaunch& out);
absl::Status SetNet(absl::string_view value, RawLaunch& out);
absl::Status SetOutput(absl::string_view value, RawLaunch& out);
absl::Status SetShownRanks(absl::string_view value, RawLaunch& out);
absl::Status SetStdin(absl::string_view value, RawLaunch& out);
absl::Status SetStage(absl::string_view value, RawLaunch& out);
absl::Status SetVerifyCode(absl::string_view value, RawLaunch& out);
absl::Status SetStageLimit(absl::string_view value, RawLaunch& out);
absl::Status SetSpool(absl::string_view value, RawLaunch& out);
absl::Status SetLogLimit(absl::string_view value, RawLaunch& out);

}  // namespace dtrain::cli
