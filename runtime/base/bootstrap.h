// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace dtrain::runtime {

using Deadline = std::chrono::steady_clock::time_point;

// Raised with every change of what ranks tell each other, and the first line of what each tells
// first: other builds are refused by name.
constexpr std::string_view kWireVersion = "dtrain-8";

// The text of a rank of this build, with kWireVersion in front, and back. Anything else is an error
// that names the rank.
std::string Versioned(std::string_view text);
Result<std::string> Unversioned(int rank, std::string_view text);
// Does not show the record, which may hold secrets of the job.
Error UnreadableRecord(int rank);

// What a rank has given, or several together.
struct Contribution {
  int rank = 0;  // who gave it: for several, the one that put them together
  std::string bytes;
};
// Makes one of several. Its results are put together in the same way. An error must name the rank.
using Fold = std::function<Result<std::string>(const std::vector<Contribution>&)>;

// How the ranks of a group that have no connection yet tell each other something: the launcher's
// table for the whole job, the parent communicator for a group made from it. All calls are
// collective, and take any bytes, up to a few KiB.
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Gives `mine` and returns what those in `from` give, in that order; an error instead, which
  // names the rank, when that cannot be read. A rank that nobody asks may give "", which costs
  // nothing.
  virtual Result<std::vector<Result<std::string>>> ExchangeSome(const std::string& mine,
                                                                const std::vector<int>& from,
                                                                Deadline deadline) = 0;

  // Folds what all ranks give; all get the same. If any gives an error, or the fold fails, all get
  // the error of the lowest such rank.
  virtual Result<std::string> Combine(const Result<std::string>& mine, const Fold& fold,
                                      Deadline deadline) = 0;
};

// One over which each rank may hear from every other.
class FullBootstrap : public Bootstrap {
 public:
  // Returns everybody's, by rank.
  virtual Result<std::vector<std::string>> Exchange(const std::string& mine, Deadline deadline) = 0;

  Result<std::vector<Result<std::string>>> ExchangeSome(const std::string& mine,
                                                        const std::vector<int>& from,
                                                        Deadline deadline) override;
  Result<std::string> Combine(const Result<std::string>& mine, const Fold& fold,
                              Deadline deadline) override;
};

// For implementations of Combine. What travels is a Result, and the rank that an error is from.
struct Outcome {
  int rank = 0;
  Result<std::string> result;
};
std::string EncodeOutcome(const Outcome& outcome);
// `text` is from `rank`.
Outcome DecodeOutcome(int rank, const std::string& text);
// The fold of all, by rank `folder`, or the error of the lowest rank that has one.
Outcome FoldOutcomes(int folder, const std::vector<Outcome>& outcomes, const Fold& fold);

}  // namespace dtrain::runtime
