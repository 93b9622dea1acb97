// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/bootstrap.h"
#include "runtime/base/communicator.h"
#include "runtime/boot/pmi_client.h"
#include "runtime/boot/topology.h"

namespace dtrain::runtime {

// Any bytes as letters, digits, '-' and '_', which every PMI server carries.
std::string EncodeText(std::string_view bytes);
// False when `text` did not come from EncodeText.
bool DecodeText(std::string_view text, std::string& bytes);

// A job of one rank.
class SoloBootstrap : public FullBootstrap {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  Result<std::vector<std::string>> Exchange(const std::string& mine, Deadline) override {
    return std::vector<std::string>{mine};
  }
};

// All ranks of a job, through the launcher's table: put, barrier, get. What is longer than a value
// of that table may be travels in pieces. Keys are "dtrain-<generation>.<exchange>-<rank>-<piece>".
// A rank asks for its own, too: what is wrong with that must show there as it does elsewhere.
class PmiBootstrap : public Bootstrap {
 public:
  // `generation` counts the times that this process has joined: the table never forgets.
  PmiBootstrap(PmiClient& pmi, int rank, int size, int generation);

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Result<std::vector<Result<std::string>>> ExchangeSome(const std::string& mine,
                                                        const std::vector<int>& from,
                                                        Deadline deadline) override;
  // Each node's leader folds what its ranks give, and rank 0 what the leaders have made of it,
  // which all others ask for: one exchange for each of the three, without those that have nothing
  // to do.
  Result<std::string> Combine(const Result<std::string>& mine, const Fold& fold,
                              Deadline deadline) override;

  // The same on all ranks. Until it is called, all are one node.
  void SetNodes(const std::vector<int>& node_of_rank);

 private:
  std::string Key(int rank, size_t piece) const;
  MaybeError Put(const std::string& mine, Deadline deadline);
  // What a rank has put, whose first piece is there already. The inner error: it cannot be read.
  Result<Result<std::string>> Get(int rank, const std::optional<std::string>& first,
                                  Deadline deadline);
  // One step of Combine: `outcome` of those in `from`, folded by the rank that hears them.
  MaybeError FoldSome(bool gives, const std::vector<int>& from, const Fold& fold, Outcome& outcome,
                      Deadline deadline);

  PmiClient& pmi_;
  const int rank_;
  const int size_;
  const int generation_;
  Places places_;
  int exchanges_ = 0;
};

// Some ranks of a parent, over the parent's allgather. All of the parent's ranks have one at the
// same time, each for its own group; as their groups may need different numbers of exchanges, the
// parent goes on in rounds until the last of them is through.
class GroupBootstrap : public FullBootstrap {
 public:
  // `members` are the parent's ranks, by rank in the group; empty: this rank is in no group, and
  // only calls Finish.
  // `runs` counts the parent's collectives, these included.
  GroupBootstrap(Communicator& parent, std::vector<int> members, uint64_t& runs);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  Result<std::vector<std::string>> Exchange(const std::string& mine, Deadline deadline) override;

  // To be called once, after the last Exchange, with how it went here. Fails on every rank of the
  // parent when it went wrong on any, naming them.
  MaybeError Finish(const MaybeError& outcome, Deadline deadline);

  // The parent itself has failed in one of the rounds.
  bool parent_failed() const { return parent_failed_; }

 private:
  enum State : int64_t { kExchanges = 0, kDone = 1, kFailed = 2 };
  struct Round {
    std::vector<int64_t> states;        // by the parent's ranks
    std::vector<std::string> payloads;  // likewise
  };
  Result<Round> RunRound(State state, const std::string& payload, Deadline deadline);
  MaybeError RunParent(Collective what, Deadline deadline);

  Communicator& parent_;
  uint64_t& runs_;
  const std::vector<int> members_;
  int rank_ = -1;
  bool parent_failed_ = false;
};

}  // namespace dtrain::runtime
