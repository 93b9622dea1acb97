// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/engine/operation.h"

namespace dtrain::runtime {

// How the ranks of a group agree on which of their pending collectives to run next. A round is
// collective over the group: every rank comes to it that has something pending, or is in
// dtrain_join. Uses the group's communicator for small agreements; one thread at a time.
class Negotiator {
 public:
  struct Refusal {
    Operation* operation;
    Error error;
  };
  // Both may be empty: then no collective is pending on all ranks yet, and there is another round.
  struct Verdict {
    std::vector<Operation*> run;   // in this order, which is the same on all ranks; `via` is all's
    std::vector<Refusal> refused;  // on every rank that has them; nothing else suffers from it
  };
  // `mine`, at least one: all that this rank has pending in `group`, in the order it made them.
  // `stuck`: it makes no other before one of them is done. `most`: how many one offer holds; the
  // same on all ranks. A failure ends the job's collectives.
  Result<Verdict> Agree(Group& group, const std::vector<Operation*>& mine, bool stuck, Spent& spent,
                        size_t most = kMostOffered);

  // Before a blocking collective whose group has a device: sets `via` to what all ranks use. Fails
  // on all of them when they ask for different things.
  MaybeError AgreeOnCall(Group& group, Operation& mine, Spent& spent);

  struct Joint {
    Collective what;
    Via via = Via::kHost;
  };
  struct Joined {
    bool all = false;        // every rank has joined
    std::vector<Joint> run;  // what the others run now
  };
  // The round of a rank that is in dtrain_join.
  Result<Joined> AgreeAsJoined(Group& group);

  // The collective that begins a round with offers of `most`, or a blocking call with an offer of
  // one: a rank that makes another call meanwhile finds this one.
  static Collective Opening(size_t most);
  static Collective RegistrationOpening();  // likewise, for Job::Register

  // A small collective of the library's own, where agreements go.
  MaybeError RunOwn(Group& group, Collective what, Spent& spent);
  // Likewise: sets `all` to what all ranks have as `mine`, in rank order.
  MaybeError GatherOwn(Group& group, const std::vector<int64_t>& mine, std::vector<int64_t>& all,
                       Spent& spent);

 private:
  Result<Agreement> ExchangeOffers(Group& group, std::vector<int32_t> offer, Spent& spent);
  // By rank; `room` is the same on all of them.
  Result<std::vector<PendingList>> ExchangeLists(Group& group, const PendingList& mine, size_t room,
                                                 Spent& spent);
  Result<Verdict> MatchLists(Group& group, const std::vector<Operation*>& mine, bool stuck,
                             size_t most, Spent& spent);
  // The error text for a key on which the ranks differ. `mine`: this rank's operation; empty if it
  // has joined.
  Result<std::string> Compare(Group& group, const std::vector<Operation*>& mine);
};

}  // namespace dtrain::runtime
