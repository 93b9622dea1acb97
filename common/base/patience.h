// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

#include "dtrain/v1/session.pb.h"

namespace dtrain {

// How long a job's workers run on without hearing a launcher: its lease, or longer where it is
// detached and says so, 30 days at most.
std::chrono::milliseconds PatienceOf(const v1::Hello& hello);

}  // namespace dtrain
