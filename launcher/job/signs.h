// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "common/base/ids.h"

namespace dtrain::job {

// What a rank's output says of its end before its exit does.
enum class Sign {
  kNone,
  kPeerLost,   // it has lost another rank, whose end explains its own
  kException,  // a traceback
  kCrash,      // "terminate called", "Segmentation fault" of a shell or a fault handler
  kKilled,     // "Killed" of a shell: by SIGKILL, as when memory runs out
};

// Of a line of stderr.
Sign SignOf(absl::string_view line);
// What a program says last that has been given what it cannot run with, and would fail again:
// "SyntaxError". Empty: it says nothing like that. Lives as long as the program.
absl::string_view MistakeOf(absl::string_view line);

// Reads ranks' output for signs, as it comes. A rank that goes on writing after its last one was
// not about to end: a program had handled its exception. Pure.
class SignReader {
 public:
  struct Seen {
    Sign sign = Sign::kNone;           // not kPeerLost
    int64_t unix_nanos = 0;            // when its text began
    int64_t peer_lost_unix_nanos = 0;  // of the last line that says so; 0: none does
    absl::string_view mistake = {};    // MistakeOf its last line on stderr
    int64_t mistake_unix_nanos = 0;    // when that line came
    bool operator==(const Seen&) const = default;
  };

  // The rank's next bytes. True: what is seen of it has changed.
  bool Read(Rank rank, bool is_stderr, absl::string_view data, int64_t unix_nanos);
  const Seen& Of(Rank rank) { return ranks_[rank].seen; }

 private:
  struct OfRank {
    void AddToLine(absl::string_view part);

    Seen seen;
    std::string line;       // has not ended, or was too long
    bool returned = false;  // what comes next begins it again
  };
  std::map<Rank, OfRank> ranks_;
};

}  // namespace dtrain::job
