// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "dtrain/v1/store.pb.h"

namespace dtrain::stores {

// Who may come to the servers of the ranks, whose protocols have nothing to know a client by: on
// this machine the job's user, as the kernel tells; from elsewhere the addresses of the job's
// nodes. A node may have addresses that this one has as well, of a bridge for example: they count
// as ours.
class Admission {
 public:
  explicit Admission(const v1::Meeting& meeting);

  struct Guest {
    std::string address;
    bool welcome = false;
    bool local = false;  // of this machine
    std::string node;    // by its name in the plan; of this machine: empty
    uint32_t ranks = 0;  // of that node
  };
  // `fd`: an accepted connection.
  Guest Look(int fd) const;

 private:
  struct Node {
    std::string name;
    uint32_t ranks = 0;
  };
  std::map<std::string, Node> nodes_;  // by each of their addresses
  uint32_t own_ranks_ = 0;
};

}  // namespace dtrain::stores
