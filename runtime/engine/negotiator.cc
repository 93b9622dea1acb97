// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/negotiator.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>

#include "runtime/engine/statement.h"

namespace dtrain::runtime {
namespace {

// A rank with more pending than this has not told the truth.
constexpr size_t kMostListed = size_t{1} << 22;
// Of an operation that ranks in dtrain_join hear of: its outline and its Via.
constexpr size_t kSharedWords = kOutlineWords + 1;

Collective Gather(const std::vector<int64_t>& mine, std::vector<int64_t>& all, int ranks) {
  all.resize(mine.size() * static_cast<size_t>(ranks));
  Collective what;
  what.kind = Collective::Kind::kAllgather;
  what.type = DTRAIN_INT64;
  what.count = mine.size();
  what.input = mine.data();
  what.output = all.data();
  return what;
}

bool MayBeJoined(const Collective& what) {
  return what.kind == Collective::Kind::kAllreduce &&
         (what.op == DTRAIN_SUM || what.op == DTRAIN_AVG);
}

std::unordered_map<uint64_t, Operation*> ByKey(const std::vector<Operation*>& operations) {
  std::unordered_map<uint64_t, Operation*> by_key;
  for (Operation* operation : operations) by_key.emplace(operation->pending.key, operation);
  return by_key;
}

Error NotOfThisVersion(size_t rank) {
  return {DTRAIN_ERROR_INTERNAL, "rank " + std::to_string(rank) +
                                     " lists its collectives in an unknown format; do all "
                                     "ranks use the same version of libdtrain?"};
}

}  // namespace

Collective Negotiator::Opening() {
  Collective what;
  what.kind = Collective::Kind::kAllreduce;
  what.count = kOfferWords;
  what.type = DTRAIN_INT32;
  what.op = DTRAIN_MIN;
  return what;
}

Collective Negotiator::CallOpening() {
  Collective what = Opening();
  what.count = kCallWords;
  return what;
}

Collective Negotiator::RegistrationOpening() {
  Collective what;
  what.kind = Collective::Kind::kAllgather;
  what.count = 1;
  what.type = DTRAIN_INT64;
  return what;
}

MaybeError Negotiator::RunOwn(Group& group, Collective what, Spent& spent) {
  what.number = group.next_run++;
  return group.communicator->Run(what, group.timeout.load(), spent);
}

MaybeError Negotiator::GatherOwn(Group& group, const std::vector<int64_t>& mine,
                                 std::vector<int64_t>& all, Spent& spent) {
  return RunOwn(group, Gather(mine, all, group.size), spent);
}

Result<Agreement> Negotiator::ExchangeOffers(Group& group, std::vector<int32_t> offer,
                                             Spent& spent) {
  Collective what = Opening();
  what.input = offer.data();
  what.output = offer.data();
  if (MaybeError error = RunOwn(group, what, spent)) return *error;
  return ReadOffers(offer);
}

Result<Matches> Negotiator::ExchangeLists(Group& group, const PendingList& mine, size_t most,
                                          Spent& spent) {
  if (most < mine.pending.size() || most > kMostListed) {
    return Error{DTRAIN_ERROR_INTERNAL, "a list of " + std::to_string(most) + " collectives for " +
                                            std::to_string(mine.pending.size())};
  }
  const std::vector<int64_t> words = PackList(mine, most);
  std::vector<int64_t> all;
  if (MaybeError error = RunOwn(group, Gather(words, all, group.size), spent)) return *error;
  std::vector<PendingList> lists;
  for (size_t r = 0; r < static_cast<size_t>(group.size); ++r) {
    auto list = UnpackList(std::span(all).subspan(r * words.size(), words.size()));
    if (!list) return NotOfThisVersion(r);
    lists.push_back(std::move(*list));
  }
  return Match(lists);
}

Result<std::string> Negotiator::ExchangeStatements(Group& group, const Operation* mine) {
  std::vector<int64_t> words(kStatementWords), all;
  if (mine != nullptr) {
    PackStatement(mine->what, mine->name, mine->shape, words.data());
  } else {
    PackJoined(words.data());
  }
  Spent spent;
  if (MaybeError error = RunOwn(group, Gather(words, all, group.size), spent)) return *error;
  return CompareStatements(all, group.members);
}

Result<Negotiator::Verdict> Negotiator::Agree(Group& group, const std::vector<Operation*>& mine,
                                              bool stuck, Spent& spent) {
  Verdict verdict;
  if (group.size == 1) {
    verdict.run = mine;
    return verdict;
  }
  std::vector<Pending> pending;
  for (const Operation* operation : mine) pending.push_back(operation->pending);
  auto agreement = ExchangeOffers(group, MakeOffer(pending), spent);
  if (!agreement.ok()) return agreement.error();
  if (agreement->differs) {
    auto matched = MatchLists(group, mine, stuck, agreement->most, spent);
    if (!matched.ok()) return matched.error();
    verdict = std::move(*matched);
  } else if (agreement->count > mine.size()) {
    return Error{DTRAIN_ERROR_INTERNAL, "an agreement on " + std::to_string(agreement->count) +
                                            " of " + std::to_string(mine.size()) + " operations"};
  } else {
    verdict.run.assign(mine.begin(), mine.begin() + static_cast<ptrdiff_t>(agreement->count));
  }
  if (agreement->joined && !verdict.run.empty()) {
    // Its zeros are the host's.
    for (Operation* operation : verdict.run) {
      if (operation->via == Via::kDevice) operation->via = Via::kStaged;
    }
    if (MaybeError error = LeaveOutUnjoinable(group, verdict)) return *error;
  }
  return verdict;
}

Result<Negotiator::Verdict> Negotiator::MatchLists(Group& group,
                                                   const std::vector<Operation*>& mine, bool stuck,
                                                   size_t most, Spent& spent) {
  PendingList list;
  list.stuck = stuck;
  const auto now = std::chrono::steady_clock::now();
  for (const Operation* operation : mine) {
    list.pending.push_back(operation->pending);
    list.overdue |= now - operation->added > group.timeout.load();
  }
  auto matches = ExchangeLists(group, list, most, spent);
  if (!matches.ok()) return matches.error();
  if (matches->hopeless) return GiveUp(group, mine, "");
  if (matches->overdue) {
    // The ranks' limits need not be the same.
    return GiveUp(group, mine,
                  (list.overdue ? "" : "another rank's time was over; here ") + LimitText(group));
  }
  const auto by_key = ByKey(mine);
  Verdict verdict;
  for (const uint64_t key : matches->differing) {
    Operation* operation = by_key.at(key);
    auto text = ExchangeStatements(group, operation);
    if (!text.ok()) return text.error();
    verdict.refused.push_back({operation, {DTRAIN_ERROR_MISMATCH, std::move(*text)}});
  }
  for (size_t i = 0; i < matches->common.size(); ++i) {
    verdict.run.push_back(by_key.at(matches->common[i]));
    verdict.run.back()->via = matches->vias[i];
  }
  return verdict;
}

Result<Negotiator::Verdict> Negotiator::GiveUp(Group& group, const std::vector<Operation*>& mine,
                                               const std::string& limit) {
  auto text = ExchangeStatements(group, mine[0]);
  if (!text.ok()) return text.error();
  Error error{DTRAIN_ERROR_MISMATCH, std::move(*text)};
  if (!limit.empty()) {
    error = {DTRAIN_ERROR_TIMEOUT, "timed out: " + error.message + " (" + limit + ")"};
  }
  Verdict verdict;
  for (Operation* operation : mine) verdict.refused.push_back({operation, error});
  return verdict;
}

Result<Via> Negotiator::AgreeOnCall(Group& group, const Operation& mine, Spent& spent) {
  if (group.size == 1) return mine.via;
  // Nobody else's call of this number has this key unless it is the same.
  std::vector<int32_t> words =
      MakeCall({mine.number, SignatureOf(mine.what, mine.shape), mine.registered, mine.via});
  Collective what = CallOpening();
  what.input = words.data();
  what.output = words.data();
  if (MaybeError error = RunOwn(group, what, spent)) return *error;
  const auto via = ReadCalls(words);
  if (via) return *via;
  auto text = ExchangeStatements(group, &mine);
  if (!text.ok()) return text.error();
  return Error{DTRAIN_ERROR_MISMATCH, std::move(*text)};
}

// ---- With ranks that are in dtrain_join ----

Result<std::vector<std::optional<Negotiator::Joint>>> Negotiator::ShareWithJoined(
    Group& group, size_t count, const std::vector<Operation*>& mine) {
  std::vector<int64_t> words(count * kSharedWords, -1);
  for (size_t i = 0; i < count; ++i) {
    int64_t* const at = &words[i * kSharedWords];
    mine.empty() ? PackJoined(at) : PackOutline(mine[i]->what, at);
    if (!mine.empty()) at[kOutlineWords] = static_cast<int64_t>(mine[i]->via);
  }
  Collective what;
  what.kind = Collective::Kind::kAllreduce;
  what.type = DTRAIN_INT64;
  what.op = DTRAIN_MAX;
  what.count = words.size();
  what.input = words.data();
  what.output = words.data();
  Spent spent;
  if (MaybeError error = RunOwn(group, what, spent)) return *error;
  std::vector<std::optional<Joint>> shared(count);
  for (size_t i = 0; i < count; ++i) {
    const int64_t* const at = &words[i * kSharedWords];
    const auto known = UnpackOutline(at);
    if (!known || !IsVia(at[kOutlineWords])) {
      return Error{DTRAIN_ERROR_MISMATCH, "another rank announced an unknown collective"};
    }
    if (MayBeJoined(*known)) shared[i] = Joint{*known, static_cast<Via>(at[kOutlineWords])};
  }
  return shared;
}

MaybeError Negotiator::LeaveOutUnjoinable(Group& group, Verdict& verdict) {
  auto shared = ShareWithJoined(group, verdict.run.size(), verdict.run);
  if (!shared.ok()) return shared.error();
  std::vector<Operation*> joinable;
  for (size_t i = 0; i < shared->size(); ++i) {
    if ((*shared)[i]) {
      joinable.push_back(verdict.run[i]);
      continue;
    }
    auto text = ExchangeStatements(group, verdict.run[i]);
    if (!text.ok()) return text.error();
    verdict.refused.push_back({verdict.run[i], {DTRAIN_ERROR_MISMATCH, std::move(*text)}});
  }
  verdict.run = std::move(joinable);
  return std::nullopt;
}

Result<Negotiator::Joined> Negotiator::AgreeAsJoined(Group& group) {
  Spent spent;
  Joined joined;
  auto agreement = ExchangeOffers(group, MakeJoinedOffer(), spent);
  if (!agreement.ok()) return agreement.error();
  joined.all = agreement->all_joined;
  if (joined.all) return joined;
  size_t count = agreement->count;
  if (agreement->differs) {
    PendingList nothing;
    nothing.joined = true;
    auto matches = ExchangeLists(group, nothing, agreement->most, spent);
    if (!matches.ok()) return matches.error();
    const bool give_up = matches->hopeless || matches->overdue;
    for (size_t i = 0; i < matches->differing.size() + (give_up ? 1 : 0); ++i) {
      auto text = ExchangeStatements(group, nullptr);
      if (!text.ok()) return text.error();
    }
    count = matches->common.size();
  }
  if (count == 0) return joined;
  auto shared = ShareWithJoined(group, count, {});
  if (!shared.ok()) return shared.error();
  for (const std::optional<Joint>& joint : *shared) {
    if (joint) {
      joined.run.push_back(*joint);
      continue;
    }
    auto text = ExchangeStatements(group, nullptr);
    if (!text.ok()) return text.error();
  }
  return joined;
}

}  // namespace dtrain::runtime
