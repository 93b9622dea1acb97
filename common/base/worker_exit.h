// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "dtrain/v1/job.pb.h"

namespace dtrain {

// A rank that has called MPI_Abort has failed, whatever its process exited with.
inline bool HasFailed(const v1::WorkerExit& exit) {
  return exit.signal() != 0 || exit.exit_code() != 0 || exit.aborted();
}

}  // namespace dtrain
