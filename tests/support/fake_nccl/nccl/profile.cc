// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_nccl/nccl/profile.h"

#include <cstdlib>

#include "tests/support/fake_nccl/nccl/codes.h"
#include "tests/support/fake_nccl/nccl/knobs.h"

extern "C" const int fake_nccl_version;  // of the library file: version.cc

namespace fake_nccl {
namespace {

Profile Make() {
  Profile p;
  p.version = Number("FAKE_NCCL_VERSION", fake_nccl_version);
  const int v = p.version;
  const auto since = [v](int first) { return v >= first; };
  p.forced_both_ways = since(21701);
  p.lazy_connect = since(22203);
  p.connects_in_call = v >= 22203 && v < 22304;
  p.thread_per_launch = since(22304);
  p.job_in_thread = v < 22703;
  p.one_job_per_thread = v < 21901;
  p.call_joins_job = since(21901);
  p.question_joins_job = since(22602);
  p.proxy_errors = v < 21801 || v >= 21901;
  p.abort_joins_job = since(21901);
  p.abort_hangs = v == 22501;
  p.ends_are_grouped = since(22203);
  p.failed_destroy_raises_depth = since(22403);
  p.destroy_takes_failed = since(22602);
  p.no_handle_deregisters = since(22304);
  p.long_texts = since(21801);
  p.shared_gpu_allowed = since(23003);
  if (v >= 23003) p.same_gpu = v < 23007 ? SameGpu::kBusIdFirstRankOnly : SameGpu::kUuid;
  const int seconds = v < 22403 ? 20 : 60;
  p.patience =
      std::chrono::milliseconds(static_cast<int>(seconds * 1000 * Fraction("FAKE_TIME_SCALE", 1)));
  return p;
}

}  // namespace

const Profile& TheProfile() {
  static const Profile profile = Make();
  return profile;
}

}  // namespace fake_nccl

FAKE_EXPORT int ncclGetVersion(int* version) {
  *version = fake_nccl::TheProfile().version;
  return fake_nccl::kSuccess;
}
