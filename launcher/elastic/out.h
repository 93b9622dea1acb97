// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "launcher/elastic/events.h"
#include "launcher/elastic/runs.h"

namespace dtrain::elastic {

// The actions of ElasticCore.
class Out {
 public:
  template <typename Action>
  void Do(Action action) {
    actions_.emplace_back(std::move(action));
  }
  void Say(const std::string& text) { Do(Announce{"dtrain: " + text}); }
  // What it does from now on does not count.
  void Stop(RunId id, Run& run, std::string why, bool cancels = false) {
    run.ending = true;
    Do(EndRun{id, std::move(why), cancels});
  }
  std::vector<ElasticAction> Take() { return std::exchange(actions_, {}); }

 private:
  std::vector<ElasticAction> actions_;
};

}  // namespace dtrain::elastic
