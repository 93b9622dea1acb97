// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "dtrain/v1/job.pb.h"

namespace dtrain {

// The cores that no other job may have for itself.
const std::string& HeldCpus(const v1::WorkerSpec& worker);

// A job's command as people write it: the words of its programs, with ":" between one and the next.
std::vector<std::string> CommandWords(const v1::JobPart& part);

// What this worker runs. Valid when HasWork.
const v1::Program& ProgramOf(const v1::JobPart& part, const v1::WorkerSpec& worker);

// There is a worker, and each has a program that is there.
bool HasWork(const v1::JobPart& part);

}  // namespace dtrain
