// SPDX-License-Identifier: Apache-2.0
#include "runtime/allreduce/pairs.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "dtrain/dtrain.h"
#include "runtime/allreduce/bench.h"
#include "runtime/allreduce/buffers.h"
#include "runtime/allreduce/rounds.h"

namespace dtrain::allreduce {
namespace {

constexpr size_t kPayload = size_t{16} << 20;

// One of the two ranks of a pair.
class Side {
 public:
  Side(dtrain_group pair, Buffer& buffer, std::optional<int> iterations)
      : buffer_(buffer), iterations_(iterations), me_(dtrain_group_rank(pair)) {
    call_.group = pair;
  }

  // Median seconds on rank `from` until the other has sent a word back for `words`.
  bool Exchange(int from, size_t words, double& seconds) {
    int32_t times = 1;
    if (!Once(from, words, seconds) || !Once(from, words, seconds)) return false;
    if (me_ == from) times = Times(seconds);
    if (!Agree(times)) return false;
    std::vector<double> all(static_cast<size_t>(times));
    for (double& one : all) {
      if (!Once(from, words, one)) return false;
    }
    if (me_ == from) seconds = Median(all);
    return true;
  }
  int me() const { return me_; }

 private:
  int32_t Times(double expected) const {
    constexpr double kSeconds = 0.1;
    if (iterations_) return *iterations_;
    return static_cast<int32_t>(std::clamp(kSeconds / expected, 3.0, 200.0));
  }

  bool Once(int from, size_t words, double& seconds) {
    const auto start = std::chrono::steady_clock::now();
    if (!Send(from, words) || !Send(1 - from, 1)) return false;
    seconds = SecondsSince(start);
    return true;
  }

  // The larger of the two becomes that of both.
  bool Agree(int32_t& number) {
    dtrain_handle handle = 0;
    return Ok(dtrain_allreduce_async(&number, &number, 1, DTRAIN_INT32, DTRAIN_MAX, &call_,
                                     &handle)) &&
           Ok(dtrain_wait(handle));
  }

  bool Send(int from, size_t words) {
    dtrain_handle handle = 0;
    return Ok(dtrain_broadcast_async(buffer_.data(), words, DTRAIN_INT32, from, &call_, &handle)) &&
           Ok(dtrain_wait(handle));
  }

  Buffer& buffer_;
  const std::optional<int> iterations_;
  const int me_;
  dtrain_options call_ = DTRAIN_OPTIONS_INIT;
};

// Fills in what this rank is the one to know: of the direction that it sends in.
bool MeasurePair(const Options& options, dtrain_group pair, Buffer& buffer, size_t words,
                 double& latency, double& bandwidth) {
  Side side(pair, buffer, options.iterations);
  for (const int from : {0, 1}) {
    double round_trip = 0;
    double seconds = 0;
    if (!side.Exchange(from, 1, round_trip) || !side.Exchange(from, words, seconds)) return false;
    if (side.me() != from) continue;
    latency = round_trip / 2;
    const double payload = static_cast<double>(words) * sizeof(int32_t);
    bandwidth = payload / std::max(seconds - latency, seconds / 2);
  }
  return true;
}

}  // namespace

bool MeasurePairs(const Options& options, Memory memory, std::vector<PairRow>& rows) {
  size_t bytes = kPayload;
  if (!options.sizes.empty()) bytes = *std::max_element(options.sizes.begin(), options.sizes.end());
  const size_t words = std::max<size_t>(bytes / sizeof(int32_t), 1);
  Buffer buffer;
  if (!buffer.Make(words * sizeof(int32_t), memory, nullptr)) return false;
  const int me = dtrain_rank();
  for (const auto& round : Rounds(dtrain_size())) {
    int mine = -1;
    for (size_t i = 0; i < round.size(); ++i) {
      if (round[i].first == me || round[i].second == me) mine = static_cast<int>(i);
    }
    dtrain_group pair = nullptr;
    if (!Ok(dtrain_group_create(mine, me, &pair))) return false;
    // For each pair latency and bandwidth one way, then the other; known to one rank each.
    std::vector<double> found(round.size() * 4, 0.0);
    if (mine >= 0) {
      double* here = &found[static_cast<size_t>(mine) * 4];
      if (round[static_cast<size_t>(mine)].second == me) here += 2;
      if (!MeasurePair(options, pair, buffer, words, here[0], here[1])) return false;
      if (!Ok(dtrain_group_free(pair))) return false;
    }
    if (!Ok(dtrain_allreduce(found.data(), found.data(), found.size(), DTRAIN_FLOAT64,
                             DTRAIN_MAX))) {
      return false;
    }
    for (size_t i = 0; i < round.size(); ++i) {
      const auto [a, b] = round[i];
      rows.push_back({a, b, found[i * 4], found[i * 4 + 1]});
      rows.push_back({b, a, found[i * 4 + 2], found[i * 4 + 3]});
    }
  }
  std::sort(rows.begin(), rows.end(), [](const PairRow& x, const PairRow& y) {
    return std::pair(x.from, x.to) < std::pair(y.from, y.to);
  });
  return true;
}

}  // namespace dtrain::allreduce
