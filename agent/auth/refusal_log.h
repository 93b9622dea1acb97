// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "common/base/clock.h"

namespace dtrain::auth {

// Which refusals are worth a line in the log: one per peer and minute, so that who is refused again
// and again does not fill the disk. Bounded: many new peers at once share one line a minute.
class RefusalLog {
 public:
  // The line for a refusal of `peer` (an address, a user id), or nothing. It tells how many were
  // kept back since the last one of that peer.
  std::optional<std::string> Line(TimePoint now, absl::string_view peer, absl::string_view why);
  // The same of a line that the caller has made; `peer` may have more words, of what it did.
  std::optional<std::string> Bound(TimePoint now, absl::string_view peer, std::string line);
  size_t size() const { return peers_.size(); }

 private:
  struct Peer {
    TimePoint told;
    size_t kept_back = 0;
  };
  void Forget(TimePoint now);

  std::map<std::string, Peer, std::less<>> peers_;
  TimePoint next_sweep_;
};

}  // namespace dtrain::auth
