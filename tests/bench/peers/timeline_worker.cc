// SPDX-License-Identifier: Apache-2.0
// timeline_worker BYTES CALLS: rank 0 prints how many seconds that many all-reduces took. All of
// them count: what a timeline costs now and then must not get lost in a median.
#include <dtrain/dtrain.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

void Check(dtrain_status status) {
  if (status == DTRAIN_OK) return;
  std::fprintf(stderr, "dtrain: %s\n", dtrain_last_error());
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const size_t count = std::strtoul(argv[1], nullptr, 10) / sizeof(float);
  const long calls = std::strtol(argv[2], nullptr, 10);
  Check(dtrain_init(nullptr));
  std::vector<float> in(count, 1), out(count);
  const auto reduce = [&](long times) {
    Check(dtrain_barrier());
    const auto start = std::chrono::steady_clock::now();
    for (long i = 0; i < times; ++i) {
      Check(dtrain_allreduce(in.data(), out.data(), count, DTRAIN_FLOAT32, DTRAIN_SUM));
    }
    Check(dtrain_barrier());
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  reduce(calls / 10 + 1);
  const double seconds = reduce(calls);
  if (dtrain_rank() == 0) std::printf("%.9f\n", seconds);
  Check(dtrain_finalize());
  return 0;
}
