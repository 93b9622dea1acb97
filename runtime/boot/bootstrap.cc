// SPDX-License-Identifier: Apache-2.0
#include "runtime/boot/bootstrap.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <utility>

namespace dtrain::runtime {
namespace {

constexpr char kLetters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
// Beyond this it is not ours: what 65536 ranks tell about a socket for each other one.
constexpr size_t kLongest = size_t{1} << 20;

int ValueOf(char c) {
  static const std::array<signed char, 256> table = [] {
    std::array<signed char, 256> values;
    values.fill(-1);
    for (int i = 0; i < 64; ++i)
      values[static_cast<unsigned char>(kLetters[i])] = static_cast<signed char>(i);
    return values;
  }();
  return table[static_cast<unsigned char>(c)];
}

}  // namespace

std::string EncodeText(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() * 4 + 2) / 3);
  unsigned bits = 0;
  int held = 0;
  for (const char c : bytes) {
    bits = (bits << 8) | static_cast<unsigned char>(c);
    for (held += 8; held >= 6; held -= 6) text += kLetters[(bits >> (held - 6)) & 63];
  }
  if (held > 0) text += kLetters[(bits << (6 - held)) & 63];
  return text;
}

bool DecodeText(std::string_view text, std::string& bytes) {
  bytes.clear();
  if (text.size() % 4 == 1) return false;
  unsigned bits = 0;
  int held = 0;
  for (const char c : text) {
    const int value = ValueOf(c);
    if (value < 0) return false;
    bits = (bits << 6) | static_cast<unsigned>(value);
    held += 6;
    if (held < 8) continue;
    held -= 8;
    bytes += static_cast<char>((bits >> held) & 255);
  }
  return true;
}

std::string PmiBootstrap::Key(int rank, size_t piece) const {
  return "dtrain-" + std::to_string(generation_) + "." + std::to_string(exchanges_) + "-" +
         std::to_string(rank) + "-" + std::to_string(piece);
}

// The first piece starts with the length of the whole and a colon.
MaybeError PmiBootstrap::Put(const std::string& mine, Deadline deadline) {
  const std::string text = EncodeText(mine);
  const std::string whole = std::to_string(text.size()) + ":" + text;
  for (size_t piece = 0, at = 0; at < whole.size(); ++piece, at += pmi_.value_limit()) {
    const auto part = std::string_view(whole).substr(at, pmi_.value_limit());
    if (MaybeError error = pmi_.Put(Key(rank_, piece), part, deadline)) return error;
  }
  return std::nullopt;
}

Result<Result<std::string>> PmiBootstrap::Get(int rank, const std::optional<std::string>& first,
                                              Deadline deadline) {
  const std::string where = "rank " + std::to_string(rank) + "'s entry";
  const auto unreadable = [&](const std::string& why) {
    return Result<std::string>(Error{DTRAIN_ERROR_LAUNCHER, where + why});
  };
  std::string whole;
  size_t wanted = 1;  // known once the first piece is here
  for (size_t piece = 0; whole.size() < wanted; ++piece) {
    Result<std::optional<std::string>> value = first;
    if (piece > 0) value = pmi_.Get(Key(rank, piece), deadline);
    if (!value.ok()) return value.error();
    if (!*value || (**value).empty()) {
      if (generation_ > 0) {
        return unreadable(
            " is not in the launcher's table: that rank has not joined the job again; "
            "its program has ended, or left the job for good");
      }
      return unreadable(
          " is not in the launcher's table after the start-up barrier; does every "
          "rank of the job use this version of libdtrain?");
    }
    whole += **value;
    if (piece > 0) continue;
    size_t length = 0;
    const auto [rest, error] = std::from_chars(whole.data(), whole.data() + whole.size(), length);
    if (error != std::errc() || rest == whole.data() + whole.size() || *rest != ':' ||
        length > kLongest) {
      return unreadable(" is garbled: " + Printable(whole));
    }
    wanted = static_cast<size_t>(rest - whole.data()) + 1 + length;
  }
  std::string bytes;
  if (whole.size() != wanted || !DecodeText(whole.substr(whole.find(':') + 1), bytes)) {
    return unreadable(" is garbled: " + Printable(whole));
  }
  return Result<std::string>(std::move(bytes));
}

PmiBootstrap::PmiBootstrap(PmiClient& pmi, int rank, int size, int generation)
    : pmi_(pmi), rank_(rank), size_(size), generation_(generation) {
  SetNodes(std::vector<int>(static_cast<size_t>(size), 0));
}

void PmiBootstrap::SetNodes(const std::vector<int>& node_of_rank) {
  places_ = PlacesOf(rank_, node_of_rank);
}

Result<std::vector<Result<std::string>>> PmiBootstrap::ExchangeSome(const std::string& mine,
                                                                    const std::vector<int>& from,
                                                                    Deadline deadline) {
  if (!mine.empty()) {
    if (MaybeError error = Put(mine, deadline)) return *error;
  }
  if (MaybeError error = pmi_.Barrier(deadline)) return *error;
  std::vector<std::string> keys;
  for (const int peer : from) keys.push_back(Key(peer, 0));
  const auto firsts = pmi_.GetAll(keys, deadline);
  if (!firsts.ok()) return firsts.error();
  std::vector<Result<std::string>> some;
  for (size_t i = 0; i < from.size(); ++i) {
    auto bytes = Get(from[i], (*firsts)[i], deadline);
    if (!bytes.ok()) return bytes.error();
    some.push_back(std::move(*bytes));
  }
  ++exchanges_;
  return some;
}

MaybeError PmiBootstrap::FoldSome(bool gives, const std::vector<int>& from, const Fold& fold,
                                  Outcome& outcome, Deadline deadline) {
  auto texts = ExchangeSome(gives ? EncodeOutcome(outcome) : "", from, deadline);
  if (!texts.ok()) return texts.error();
  if (from.empty()) return std::nullopt;
  std::vector<Outcome> outcomes;
  for (size_t i = 0; i < from.size(); ++i) {
    const Result<std::string>& text = (*texts)[i];
    if (text.ok()) outcomes.push_back(DecodeOutcome(from[i], *text));
    if (!text.ok()) outcomes.push_back({from[i], text.error()});
  }
  outcome = FoldOutcomes(rank_, outcomes, fold);
  return std::nullopt;
}

Result<std::string> PmiBootstrap::Combine(const Result<std::string>& mine, const Fold& fold,
                                          Deadline deadline) {
  const std::vector<int> nobody;
  const bool leader = places_.leader();
  Outcome outcome{rank_, mine};
  MaybeError lost;
  if (places_.largest() > 1) {
    lost = FoldSome(true, leader ? places_.here() : nobody, fold, outcome, deadline);
  }
  if (!lost && places_.node_count() > 1) {
    lost = FoldSome(leader, rank_ == 0 ? places_.leaders() : nobody, fold, outcome, deadline);
  }
  const Fold as_it_is = [](const auto& one) -> Result<std::string> { return one[0].bytes; };
  if (!lost) lost = FoldSome(rank_ == 0, {0}, as_it_is, outcome, deadline);
  if (!lost) return outcome.result;
  // What is known here explains why others have not come.
  return outcome.result.ok() ? *lost : outcome.result.error();
}

GroupBootstrap::GroupBootstrap(Communicator& parent, std::vector<int> members, uint64_t& runs)
    : parent_(parent), runs_(runs), members_(std::move(members)) {
  const auto me = std::find(members_.begin(), members_.end(), parent.rank());
  if (me != members_.end()) rank_ = static_cast<int>(me - members_.begin());
}

MaybeError GroupBootstrap::RunParent(Collective what, Deadline deadline) {
  what.number = runs_++;
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      deadline - std::chrono::steady_clock::now());
  Spent spent;
  MaybeError error = parent_.Run(what, std::max(left, std::chrono::milliseconds(1)), spent);
  parent_failed_ = parent_failed_ || error.has_value();
  return error;
}

Result<GroupBootstrap::Round> GroupBootstrap::RunRound(State state, const std::string& payload,
                                                       Deadline deadline) {
  const auto ranks = static_cast<size_t>(parent_.size());
  const int64_t mine[2] = {state, static_cast<int64_t>(payload.size())};
  std::vector<int64_t> heads(2 * ranks);
  Collective what;
  what.kind = Collective::Kind::kAllgather;
  what.type = DTRAIN_INT64;
  what.input = mine;
  what.output = heads.data();
  what.count = 2;
  if (MaybeError error = RunParent(what, deadline)) return *error;

  Round round;
  int64_t longest = 0;
  for (size_t r = 0; r < ranks; ++r) {
    round.states.push_back(heads[2 * r]);
    longest = std::max(longest, heads[2 * r + 1]);
  }
  round.payloads.resize(ranks);
  if (longest == 0) return round;

  const size_t words = (static_cast<size_t>(longest) + 7) / 8;
  std::vector<int64_t> input(words), output(words * ranks);
  if (!payload.empty()) std::memcpy(input.data(), payload.data(), payload.size());
  what.input = input.data();
  what.output = output.data();
  what.count = words;
  if (MaybeError error = RunParent(what, deadline)) return *error;
  for (size_t r = 0; r < ranks; ++r) {
    round.payloads[r].assign(reinterpret_cast<const char*>(&output[r * words]),
                             static_cast<size_t>(heads[2 * r + 1]));
  }
  return round;
}

Result<std::vector<std::string>> GroupBootstrap::Exchange(const std::string& mine,
                                                          Deadline deadline) {
  auto round = RunRound(kExchanges, mine, deadline);
  if (!round.ok()) return round.error();
  std::vector<std::string> all;
  for (const int member : members_) {
    const auto r = static_cast<size_t>(member);
    if (round->states[r] != kExchanges) {
      return Error{DTRAIN_ERROR_NETWORK,
                   "rank " + std::to_string(member) + " of the job could not join the group"};
    }
    all.push_back(std::move(round->payloads[r]));
  }
  return all;
}

MaybeError GroupBootstrap::Finish(const MaybeError& outcome, Deadline deadline) {
  while (!parent_failed_) {
    auto round = RunRound(outcome ? kFailed : kDone, "", deadline);
    if (!round.ok()) return round.error();
    std::string failed;
    bool more = false;
    for (size_t r = 0; r < round->states.size(); ++r) {
      more = more || round->states[r] == kExchanges;
      if (round->states[r] == kFailed) failed += (failed.empty() ? "" : ", ") + std::to_string(r);
    }
    if (more) continue;
    if (outcome || failed.empty()) return outcome;
    return Error{DTRAIN_ERROR_NETWORK, "it failed on rank " + failed};
  }
  return outcome;
}

}  // namespace dtrain::runtime
