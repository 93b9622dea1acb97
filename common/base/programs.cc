// SPDX-License-Identifier: Apache-2.0
#include "common/base/programs.h"

#include <algorithm>
#include <cstdint>

namespace dtrain {

std::vector<std::string> CommandWords(const v1::JobPart& part) {
  std::vector<std::string> words;
  for (const v1::Program& program : part.programs()) {
    if (&program != &part.programs(0)) words.emplace_back(":");
    words.insert(words.end(), program.argv().begin(), program.argv().end());
  }
  return words;
}

const v1::Program& ProgramOf(const v1::JobPart& part, const v1::WorkerSpec& worker) {
  return part.programs(static_cast<int>(worker.program()));
}

bool HasWork(const v1::JobPart& part) {
  const auto programs = static_cast<uint32_t>(part.programs_size());
  return part.workers_size() > 0 &&
         std::all_of(part.workers().begin(), part.workers().end(), [&](const v1::WorkerSpec& each) {
           return each.program() < programs && ProgramOf(part, each).argv_size() > 0;
         });
}

const std::string& HeldCpus(const v1::WorkerSpec& worker) {
  return worker.held_cpulist().empty() ? worker.cpulist() : worker.held_cpulist();
}

}  // namespace dtrain
