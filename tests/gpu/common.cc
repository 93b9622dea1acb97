// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "tests/gpu/checks.h"

namespace dtrain::gpu_check {

using std::chrono::steady_clock;

void MustDtrain(Result& result, dtrain_status status, const char* what) {
  if (status == DTRAIN_OK) return;
  result.Miss(std::string(what) + ": " + dtrain_last_error() + " (" + dtrain_status_name(status) +
              ")");
  result.Give();
}

void Begin(Result& result, const dtrain_config* config) {
  const auto start = steady_clock::now();
  MustDtrain(result, dtrain_init(config), "dtrain_init");
  result.Number("init_s", SecondsSince(start));
  if (std::strcmp(dtrain_backend(), "nccl") == 0) return;
  result.Miss(std::string("the job runs on ") + dtrain_backend() + ", not on NCCL");
  result.Give();
}

void End(Result& result) {
  const auto start = steady_clock::now();
  MustDtrain(result, dtrain_finalize(), "dtrain_finalize");
  result.Number("finalize_s", SecondsSince(start));
}

float ValueAt(size_t i, int rank) {
  return static_cast<float>((i * 7 + static_cast<size_t>(rank) * 5) % 23);
}

float SumAt(size_t i, int ranks) {
  float sum = 0;
  for (int rank = 0; rank < ranks; ++rank) sum += ValueAt(i, rank);
  return sum;
}

double SecondsSince(steady_clock::time_point start) {
  return std::chrono::duration<double>(steady_clock::now() - start).count();
}

double Quantile(std::vector<double>& values, double part) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1,
                         static_cast<size_t>(part * static_cast<double>(values.size())))];
}

}  // namespace dtrain::gpu_check
