// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace dtrain::bench {

enum class Tool { kAllreduce, kPairs, kScaling };

// A number of ranks as --np has it.
struct RankCount {
  uint32_t ranks = 0;
  bool local = false;  // written with a minus: on this machine
};

// `dtrain bench TOOL ...`, checked.
struct Options {
  Tool tool = Tool::kAllreduce;
  std::string help;  // not empty: to be printed on stdout, and nothing else done

  bool json = false;
  std::string plot;    // a file that ends in .svg or .html; empty: none
  std::string worker;  // dtrain-allreduce, on every node; empty: as beside this program
  std::vector<std::string> launch_flags;  // for `dtrain launch`, as they were given

  // allreduce
  std::vector<uint64_t> sizes;     // bytes, in the order given
  bool sizes_are_default = false;  // and may be left out where there is no memory for them
  std::string collective = "allreduce";
  std::string type = "float32";
  std::string op = "sum";
  std::optional<uint32_t> iterations;
  std::optional<bool> pipelined;  // default: as fits what the job runs on

  // scaling
  std::vector<RankCount> counts;
  std::vector<std::string> command;
  std::optional<double> batch;  // samples of one rank in one step
};

// 4 B to 1 GiB by powers of two, and the gradients of ResNet-50.
std::vector<uint64_t> DefaultSizes();

// `args` are the words after `dtrain bench`. Every error is InvalidArgument and leads to exit
// code 2. Flags of launch are known by name; their values are checked by launch. Pure.
absl::StatusOr<Options> Parse(const std::vector<std::string>& args);

}  // namespace dtrain::bench
