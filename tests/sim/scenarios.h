// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tests/sim/simulation.h"

namespace dtrain::sim {

// One thing that a cluster goes through. `run` returns what that alone took, and complains of an
// end that is not the one to expect.
struct Scenario {
  std::string name;
  std::string what;
  Bill (*run)(size_t nodes);
  size_t few = 1000;            // nodes that are enough to measure
  bool grows_on_nodes = false;  // what each node gets has something of all
};

const std::vector<Scenario>& Scenarios();

}  // namespace dtrain::sim
