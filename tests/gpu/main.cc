// SPDX-License-Identifier: Apache-2.0
// gpu_check CHECK [flags]: one process of a check of tools/gpu-check, which starts it, alone or as
// the workers of a job, and reads the line that it prints. docs/gpu.md says what the checks are.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <sstream>

#include "tests/gpu/checks.h"

namespace dtrain::gpu_check {

Arguments::Arguments(int argc, char** argv) {
  for (int i = 2; i < argc; ++i) {
    const std::string name = argv[i];
    const bool has_value = i + 1 < argc && std::strncmp(argv[i + 1], "--", 2) != 0;
    values_[name] = has_value ? argv[++i] : "";
  }
}

std::string Arguments::Text(const std::string& name, const std::string& otherwise) const {
  const auto found = values_.find(name);
  return found == values_.end() ? otherwise : found->second;
}

int Arguments::Number(const std::string& name, int otherwise) const {
  const auto found = values_.find(name);
  return found == values_.end() ? otherwise : std::atoi(found->second.c_str());
}

std::vector<std::string> Arguments::List(const std::string& name,
                                         const std::string& otherwise) const {
  std::vector<std::string> words;
  std::istringstream text(Text(name, otherwise));
  for (std::string word; std::getline(text, word, ',');) words.push_back(word);
  return words;
}

namespace {

struct Named {
  const char* name;
  Check check;
};

constexpr Named kChecks[] = {{"libraries", CheckLibraries},
                             {"collectives", CheckCollectives},
                             {"init", CheckInit},
                             {"raw-init", CheckRawInit},
                             {"groups", CheckGroups},
                             {"ordering", CheckOrdering},
                             {"abort", CheckAbort},
                             {"graph", CheckGraph},
                             {"latency", CheckLatency},
                             {"where", CheckWhere},
                             {"device", CheckDevice},
                             {"hold", CheckHold},
                             {"nvml", CheckNvml},
                             {"raw-sizes", CheckRawSizes},
                             {"mixed-memory", CheckMixedMemory},
                             {"threads", CheckThreads}};

int Main(int argc, char** argv) {
  // When one rank fails the launcher ends the others: these are to say what they saw first.
  // tools/gpu-check ends with KILL what stays.
  std::signal(SIGTERM, SIG_IGN);
  for (const Named& named : kChecks) {
    if (argc >= 2 && std::strcmp(argv[1], named.name) == 0) {
      return named.check(Arguments(argc, argv));
    }
  }
  std::fprintf(stderr, "usage: gpu_check CHECK [--flag value]...; run tools/gpu-check instead\n");
  return 2;
}

}  // namespace
}  // namespace dtrain::gpu_check

int main(int argc, char** argv) { return dtrain::gpu_check::Main(argc, argv); }
