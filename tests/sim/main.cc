// SPDX-License-Identifier: Apache-2.0
// dtrain-sim [NODES...] [-s SCENARIO]: what each scenario takes, in a table.
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/sim/scenarios.h"

namespace {

double Seconds(dtrain::Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<size_t> sizes;
  std::string only;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "-s") == 0 && i + 1 < argc) {
      only = argv[++i];
    } else if (const unsigned long nodes = std::strtoul(argv[i], nullptr, 10); nodes > 0) {
      sizes.push_back(nodes);
    } else {
      std::fprintf(stderr, "usage: dtrain-sim [NODES...] [-s SCENARIO]\n");
      for (const dtrain::sim::Scenario& scenario : dtrain::sim::Scenarios()) {
        std::fprintf(stderr, "  %-12s %s\n", scenario.name.c_str(), scenario.what.c_str());
      }
      return 2;
    }
  }
  if (sizes.empty()) sizes = {256, 1000};
  std::printf("%-12s %6s %12s %10s %10s %9s %10s %10s %10s %9s\n", "scenario", "nodes",
              "launcher, s", "nodes, s", "simulated", "messages", "MB out", "MB made", "MB in",
              "peak, MB");
  for (const dtrain::sim::Scenario& scenario : dtrain::sim::Scenarios()) {
    if (!only.empty() && scenario.name != only) continue;
    for (const size_t nodes : sizes) {
      const dtrain::sim::Bill bill = scenario.run(nodes);
      rusage usage{};
      getrusage(RUSAGE_SELF, &usage);
      std::printf("%-12s %6zu %12.4f %10.4f %10.3f %9zu %10.2f %10.2f %10.2f %9.0f\n",
                  scenario.name.c_str(), nodes, Seconds(bill.launcher_cpu), Seconds(bill.nodes_cpu),
                  Seconds(bill.simulated), bill.messages, static_cast<double>(bill.bytes_out) / 1e6,
                  static_cast<double>(bill.bytes_made) / 1e6,
                  static_cast<double>(bill.bytes_in) / 1e6,
                  static_cast<double>(usage.ru_maxrss) / 1e3);
      std::fflush(stdout);
    }
  }
  return 0;
}
