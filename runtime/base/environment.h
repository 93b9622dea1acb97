// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>

#include "runtime/base/result.h"

namespace dtrain::runtime {

// DTRAIN_BACKEND: what carries the collectives. Auto is NCCL when every rank can use it.
enum class BackendChoice { kAuto, kCpu, kNccl };

// What the launcher and the user told this process, checked.
struct Environment {
  int pmi_fd = -1;         // -1: no launcher, a job of one rank
  int rank = 0;            // 0 .. size - 1
  int size = 1;            // at least 1
  std::string address;     // DTRAIN_ADDRESS, or empty
  std::string interfaces;  // GLOO_SOCKET_IFNAME, or empty
  std::chrono::milliseconds init_timeout{std::chrono::seconds(300)};
  // As long as PyTorch's: rank 0 may write a checkpoint while the others wait in a collective.
  std::chrono::milliseconds collective_timeout{std::chrono::seconds(1800)};
  BackendChoice backend = BackendChoice::kAuto;
  // Fusion of small all-reduces; rank 0's values count for all ranks.
  size_t fusion_threshold = size_t{128} << 20;  // bytes; 0: none
  std::chrono::microseconds cycle_time{1000};   // how long they are gathered
  int page_fd = -1;                             // the progress page, if there is one
};

// `get` returns the value of a variable, or nullptr. `config` overrides the environment.
Result<Environment> ReadEnvironment(const dtrain_config& config,
                                    const std::function<const char*(const char*)>& get);

}  // namespace dtrain::runtime
