// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "dtrain/v1/job.pb.h"

namespace dtrain::stage {

// `bytes`, at most 1 MiB, as the data of a piece: compressed where that is worth it.
void Fill(v1::StagePiece& piece, std::string bytes);

}  // namespace dtrain::stage
