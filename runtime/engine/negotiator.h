// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
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
  // `stuck`: it makes no other before one of them is done. A failure ends the job's collectives.
  Result<Verdict> Agree(Group& group, const std::vector<Operation*>& mine, bool stuck,
                        Spent& spent);

  // Before a blocking collective whose group has a device: what all ranks' buffers say. Fails on
  // all of them when they ask for different things.
  Result<Via> AgreeOnCall(Group& group, const Operation& mine, Spent& spent);

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

  // With what a round begins: what another call finds there that some rank makes meanwhile.
  static Collective Opening();
  static Collective CallOpening();          // likewise, of AgreeOnCall
  static Collective RegistrationOpening();  // and of Job::Register

  // A small collective of the library's own, where agreements go.
  MaybeError RunOwn(Group& group, Collective what, Spent& spent);
  // Likewise: sets `all` to what all ranks have as `mine`, in rank order.
  MaybeError GatherOwn(Group& group, const std::vector<int64_t>& mine, std::vector<int64_t>& all,
                       Spent& spent);

 private:
  Result<Agreement> ExchangeOffers(Group& group, std::vector<int32_t> offer, Spent& spent);
  Result<Matches> ExchangeLists(Group& group, const PendingList& mine, size_t most, Spent& spent);
  // What every rank asks for: this one for `mine`, or nothing as it has joined.
  Result<std::string> ExchangeStatements(Group& group, const Operation* mine);
  Result<Verdict> MatchLists(Group& group, const std::vector<Operation*>& mine, bool stuck,
                             size_t most, Spent& spent);
  // Neither side can go on with what it waits for. `limit`: a text about the time limit, where that
  // is the reason; else empty.
  Result<Verdict> GiveUp(Group& group, const std::vector<Operation*>& mine,
                         const std::string& limit);
  // Tells ranks that have joined what the others are about to run; those ranks give an empty `mine`
  // of `count`. Null: an operation that a joined rank cannot go along with.
  Result<std::vector<std::optional<Joint>>> ShareWithJoined(Group& group, size_t count,
                                                            const std::vector<Operation*>& mine);
  MaybeError LeaveOutUnjoinable(Group& group, Verdict& verdict);
};

}  // namespace dtrain::runtime
