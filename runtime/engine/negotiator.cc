// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/negotiator.h"

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

Collective Own(Collective::Kind kind, dtrain_type type, size_t count) {
  Collective what;
  what.kind = kind;
  what.type = type;
  what.count = count;
  return what;
}

// Without operations: of a rank that is in dtrain_join.
PendingList ListOf(const std::vector<Operation*>& operations, bool stuck) {
  PendingList list;
  list.joined = operations.empty();
  list.stuck = stuck;
  const auto now = std::chrono::steady_clock::now();
  for (const Operation* operation : operations) {
    list.pending.push_back(operation->pending);
    list.overdue |= now - operation->added > operation->group->timeout.load();
  }
  if (list.joined) return list;
  list.name = operations[0]->name;
  list.shape = operations[0]->shape;
  return list;
}

std::unordered_map<uint64_t, Operation*> ByKey(const std::vector<Operation*>& operations) {
  std::unordered_map<uint64_t, Operation*> by_key;
  for (Operation* operation : operations) by_key.emplace(operation->pending.key, operation);
  return by_key;
}

Negotiator::Verdict RefuseAll(const std::vector<Operation*>& operations, const Error& error) {
  Negotiator::Verdict verdict;
  for (Operation* operation : operations) verdict.refused.push_back({operation, error});
  return verdict;
}

Error NotOfThisVersion(size_t rank) {
  return {DTRAIN_ERROR_INTERNAL, "rank " + std::to_string(rank) +
                                     " lists its collectives in an unknown format; do all "
                                     "ranks use the same version of libdtrain?"};
}

}  // namespace

Collective Negotiator::Opening(size_t most) {
  Collective what = Own(Collective::Kind::kAllreduce, DTRAIN_INT32, OfferWords(most));
  what.op = DTRAIN_MIN;
  return what;
}

Collective Negotiator::RegistrationOpening() {
  return Own(Collective::Kind::kAllgather, DTRAIN_INT64, 1);
}

MaybeError Negotiator::RunOwn(Group& group, Collective what, Spent& spent) {
  what.number = group.next_run++;
  return group.communicator->Run(what, group.timeout.load(), spent);
}

MaybeError Negotiator::GatherOwn(Group& group, const std::vector<int64_t>& mine,
                                 std::vector<int64_t>& all, Spent& spent) {
  all.resize(mine.size() * static_cast<size_t>(group.size));
  Collective what = Own(Collective::Kind::kAllgather, DTRAIN_INT64, mine.size());
  what.input = mine.data();
  what.output = all.data();
  return RunOwn(group, what, spent);
}

Result<Agreement> Negotiator::ExchangeOffers(Group& group, std::vector<int32_t> offer,
                                             Spent& spent) {
  Collective what = Opening(kMostOffered);
  what.count = offer.size();
  what.input = offer.data();
  what.output = offer.data();
  if (MaybeError error = RunOwn(group, what, spent)) return *error;
  return ReadOffers(offer);
}

Result<std::vector<PendingList>> Negotiator::ExchangeLists(Group& group, const PendingList& mine,
                                                           size_t room, Spent& spent) {
  if (room < mine.pending.size() || room > kMostListed) {
    return Error{DTRAIN_ERROR_INTERNAL, "a list of " + std::to_string(room) + " collectives for " +
                                            std::to_string(mine.pending.size())};
  }
  const std::vector<int64_t> words = PackList(mine, room);
  std::vector<int64_t> all;
  if (MaybeError error = GatherOwn(group, words, all, spent)) return *error;
  std::vector<PendingList> lists;
  for (size_t r = 0; r < static_cast<size_t>(group.size); ++r) {
    auto list = UnpackList(std::span(all).subspan(r * words.size(), words.size()));
    if (!list) return NotOfThisVersion(r);
    lists.push_back(std::move(*list));
  }
  return lists;
}

Result<std::string> Negotiator::Compare(Group& group, const std::vector<Operation*>& mine) {
  Spent spent;
  const auto lists = ExchangeLists(group, ListOf(mine, false), 1, spent);
  if (!lists.ok()) return lists.error();
  return CompareFirst(*lists, group.members);
}

Result<Negotiator::Verdict> Negotiator::Agree(Group& group, const std::vector<Operation*>& mine,
                                              bool stuck, Spent& spent, size_t most) {
  Verdict verdict;
  verdict.run = mine;
  if (group.size == 1) return verdict;
  std::vector<Pending> pending;
  for (const Operation* operation : mine) pending.push_back(operation->pending);
  auto agreement = ExchangeOffers(group, MakeOffer(pending, most), spent);
  if (!agreement.ok()) return agreement.error();
  if (agreement->differs) return MatchLists(group, mine, stuck, agreement->most, spent);
  if (agreement->count > mine.size()) {
    return Error{DTRAIN_ERROR_INTERNAL, "an agreement on " + std::to_string(agreement->count) +
                                            " of " + std::to_string(mine.size()) + " operations"};
  }
  verdict.run.resize(agreement->count);
  if (!agreement->joined) return verdict;
  return MatchLists(group, verdict.run, stuck, agreement->count, spent);
}

Result<Negotiator::Verdict> Negotiator::MatchLists(Group& group,
                                                   const std::vector<Operation*>& mine, bool stuck,
                                                   size_t most, Spent& spent) {
  const PendingList list = ListOf(mine, stuck);
  const auto lists = ExchangeLists(group, list, most, spent);
  if (!lists.ok()) return lists.error();
  const Matches matches = Match(*lists);
  if (matches.hopeless) {
    return RefuseAll(mine, {DTRAIN_ERROR_MISMATCH, CompareFirst(*lists, group.members)});
  }
  if (matches.overdue) {
    // The ranks' limits need not be the same.
    const char* const whose = list.overdue ? " (" : " (another rank's time was over; here ";
    return RefuseAll(
        mine, {DTRAIN_ERROR_TIMEOUT, "timed out: " + CompareFirst(*lists, group.members) + whose +
                                         LimitText(group) + ")"});
  }
  Verdict verdict;
  const auto by_key = ByKey(mine);
  for (const uint64_t key : matches.differing) {
    Operation* operation = by_key.at(key);
    auto text = Compare(group, {operation});
    if (!text.ok()) return text.error();
    verdict.refused.push_back({operation, {DTRAIN_ERROR_MISMATCH, std::move(*text)}});
  }
  for (const Pending& common : matches.common) {
    verdict.run.push_back(by_key.at(common.key));
    verdict.run.back()->via = common.via;
  }
  return verdict;
}

MaybeError Negotiator::AgreeOnCall(Group& group, Operation& mine, Spent& spent) {
  // Nobody else's call of this number has this key unless it is the same.
  mine.SetPending(mine.number);
  auto verdict = Agree(group, {&mine}, true, spent, 1);
  if (!verdict.ok()) return verdict.error();
  if (!verdict->refused.empty()) return verdict->refused[0].error;
  // Every rank waits for its call, so there is nothing that could come.
  if (verdict->run.empty()) {
    return Error{
        DTRAIN_ERROR_INTERNAL,
        "another rank says that its blocking collective may still change; do all ranks use "
        "the same version of libdtrain?"};
  }
  return std::nullopt;
}

Result<Negotiator::Joined> Negotiator::AgreeAsJoined(Group& group) {
  Spent spent;
  Joined joined;
  auto agreement = ExchangeOffers(group, MakeJoinedOffer(), spent);
  if (!agreement.ok()) return agreement.error();
  joined.all = agreement->all_joined;
  if (joined.all) return joined;
  const size_t most = agreement->differs ? agreement->most : agreement->count;
  const auto lists = ExchangeLists(group, ListOf({}, false), most, spent);
  if (!lists.ok()) return lists.error();
  const Matches matches = Match(*lists);
  for (size_t i = 0; i < matches.differing.size(); ++i) {
    const auto text = Compare(group, {});
    if (!text.ok()) return text.error();
  }
  for (const Pending& common : matches.common) {
    if (const auto what = CollectiveOf(common.outline)) joined.run.push_back({*what, common.via});
  }
  return joined;
}

}  // namespace dtrain::runtime
