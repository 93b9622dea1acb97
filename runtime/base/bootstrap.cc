// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/bootstrap.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace dtrain::runtime {
namespace {

// Longer error texts are cut: all ranks read them.
constexpr size_t kLongestReason = 2000;
constexpr char kValue = 'V';
constexpr char kError = 'E';

// The number in front of `end`, which is removed with it.
bool TakeNumber(std::string_view& text, char end, int& value) {
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || rest == text.data() + text.size() || *rest != end) return false;
  text.remove_prefix(static_cast<size_t>(rest - text.data()) + 1);
  return true;
}

std::string WithoutControlBytes(std::string_view text) {
  std::string out(text.substr(0, kLongestReason));
  for (char& c : out) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  return out;
}

}  // namespace

std::string Versioned(std::string_view text) {
  return std::string(kWireVersion) + "\n" + std::string(text);
}

Result<std::string> Unversioned(int rank, std::string_view text) {
  const std::string_view version = text.substr(0, text.find('\n'));
  if (version == kWireVersion && version.size() < text.size()) {
    return std::string(text.substr(version.size() + 1));
  }
  // No more of it: the rest may hold secrets of the job.
  return Error{DTRAIN_ERROR_LAUNCHER,
               "rank " + std::to_string(rank) +
                   " does not speak as this version of libdtrain does: it begins with '" +
                   Printable(version.substr(0, 40)) + "', and this one with '" +
                   std::string(kWireVersion) + "'; install the same version on all nodes"};
}

Error UnreadableRecord(int rank) {
  return {DTRAIN_ERROR_LAUNCHER, "what rank " + std::to_string(rank) +
                                     " published cannot be read; do all ranks use the same "
                                     "version of libdtrain?"};
}

std::string EncodeOutcome(const Outcome& outcome) {
  if (outcome.result.ok()) return kValue + *outcome.result;
  const Error& error = outcome.result.error();
  return kError + std::to_string(outcome.rank) + ":" + std::to_string(error.code) + ":" +
         error.message.substr(0, kLongestReason);
}

Outcome DecodeOutcome(int rank, const std::string& text) {
  if (text.starts_with(kValue)) return {rank, text.substr(1)};
  std::string_view rest = text;
  int from = 0, code = 0;
  if (rest.starts_with(kError)) {
    rest.remove_prefix(1);
    if (TakeNumber(rest, ':', from) && from >= 0 && TakeNumber(rest, ':', code) &&
        code > DTRAIN_OK && code <= DTRAIN_ERROR_DEVICE && !rest.empty()) {
      return {from, Error{static_cast<dtrain_status>(code), WithoutControlBytes(rest)}};
    }
  }
  return {rank, UnreadableRecord(rank)};
}

Outcome FoldOutcomes(int folder, const std::vector<Outcome>& outcomes, const Fold& fold) {
  const Outcome* failed = nullptr;
  std::vector<Contribution> all;
  for (const Outcome& outcome : outcomes) {
    if (outcome.result.ok()) {
      all.push_back({outcome.rank, *outcome.result});
    } else if (failed == nullptr || outcome.rank < failed->rank) {
      failed = &outcome;
    }
  }
  if (failed != nullptr) return *failed;
  return {folder, fold(all)};
}

Result<std::vector<Result<std::string>>> FullBootstrap::ExchangeSome(const std::string& mine,
                                                                     const std::vector<int>& from,
                                                                     Deadline deadline) {
  auto all = Exchange(mine, deadline);
  if (!all.ok()) return all.error();
  std::vector<Result<std::string>> some;
  for (const int rank : from) some.emplace_back(std::move((*all)[static_cast<size_t>(rank)]));
  return some;
}

Result<std::string> FullBootstrap::Combine(const Result<std::string>& mine, const Fold& fold,
                                           Deadline deadline) {
  auto all = Exchange(EncodeOutcome({rank(), mine}), deadline);
  if (!all.ok()) return mine.ok() ? all.error() : mine.error();
  std::vector<Outcome> outcomes;
  for (int r = 0; r < size(); ++r) {
    outcomes.push_back(DecodeOutcome(r, (*all)[static_cast<size_t>(r)]));
  }
  return FoldOutcomes(rank(), outcomes, fold).result;
}

}  // namespace dtrain::runtime
