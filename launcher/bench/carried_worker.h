// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/os/scratch_folder.h"

namespace dtrain::bench {

// dtrain-allreduce with its libdtrain, in a folder that --stage takes to hosts that have neither.
class CarriedWorker {
 public:
  // `program`: ours. NOT_FOUND: its library does not lie where it is built and installed.
  static absl::StatusOr<CarriedWorker> Make(const std::string& program);

  const std::string& folder() const { return folder_.path(); }
  // As the copy's top folder knows it.
  static std::string command() { return "bin/dtrain-allreduce"; }

 private:
  explicit CarriedWorker(os::ScratchFolder folder) : folder_(std::move(folder)) {}
  os::ScratchFolder folder_;
};

}  // namespace dtrain::bench
