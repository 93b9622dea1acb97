// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dtrain::stores {

// Where a worker of an elastic Horovod job hears of changes of hosts.
struct WorkerAddress {
  struct Place {
    std::string ip;
    uint16_t port = 0;
  };
  std::vector<Place> places;  // at least one; each once
  std::string key;            // of what is said there; never empty
};

// Of a pickle, after base64.
inline constexpr size_t kMostPickle = 64 << 10;

// What a worker puts at /worker_addresses: base64 of a pickle of
// ({interface: [(ip, port), …]}, key). The reader knows only the few opcodes that Python writes for
// such a value: none of them names a class or calls anything. An error says what was found instead,
// in words that are safe to print. Pure.
//
// Source: horovod/runner/elastic/worker.py, horovod/runner/common/util/{codec,network,secret}.py.
absl::StatusOr<WorkerAddress> ReadWorkerAddress(absl::string_view base64);

}  // namespace dtrain::stores
