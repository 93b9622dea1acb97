// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <unordered_map>

#include "dtrain/v1/journal.pb.h"

namespace dtrain::detached {

// Jobs that have ended, in one file, so that listing thousands does not open thousands. Only a
// shortcut: it is made again from the jobs' folders where it is missing or damaged.
struct JobIndex {
  std::unordered_map<std::string, v1::JobEntry> ended;  // by id
  bool stale = false;                                   // the file says something else

  // What is readable of it.
  static JobIndex Read(const std::string& file);
  // Without a lock: what another process adds meanwhile, and this loses, is found again by whoever
  // lists the folders next. So is all of it if it cannot be written.
  void Write(const std::string& file) const;
};

}  // namespace dtrain::detached
