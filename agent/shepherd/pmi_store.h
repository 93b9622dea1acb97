// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "dtrain/v1/job.pb.h"

namespace dtrain::shepherd {

// The job's key-value space as one node knows it, for clients of either PMI: what its ranks have
// put, visible to them at once, and what came down with the fences. Bounded.
class PmiStore {
 public:
  // Null: it is in. Otherwise why not, in one word.
  const char* Put(const std::string& key, const std::string& value);
  // Null when it is not there. Valid until the next call.
  const std::string* Find(const std::string& key) const;
  // Moves what was put since the last fence to this one.
  void Take(v1::FenceEnter* enter);
  // What all nodes have put.
  void Add(const v1::FenceRelease& release);

 private:
  std::map<std::string, std::string> values_;   // what Find answers from
  std::map<std::string, std::string> pending_;  // put since the last fence
  size_t pending_bytes_ = 0;
};

}  // namespace dtrain::shepherd
