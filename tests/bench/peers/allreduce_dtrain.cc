// SPDX-License-Identifier: Apache-2.0
// Times dtrain_allreduce as the peers are timed.
#include <dtrain/dtrain.h>

#include "allreduce_peer.h"

namespace {

void Check(dtrain_status status) {
  if (status == DTRAIN_OK) return;
  std::fprintf(stderr, "dtrain: %s\n", dtrain_last_error());
  std::exit(1);
}

void Reduce(const float* in, float* out, size_t n) {
  Check(dtrain_allreduce(in, out, n, DTRAIN_FLOAT32, DTRAIN_SUM));
}

void* Allocate(size_t bytes) {
  void* memory = nullptr;
  Check(dtrain_alloc(bytes, &memory));
  return memory;
}

}  // namespace

int main(int argc, char** argv) {
  Check(dtrain_init(nullptr));
  peers::Peer peer;
  peer.rank = dtrain_rank();
  peer.size = dtrain_size();
  peer.barrier = [] { Check(dtrain_barrier()); };
  peer.max = [](double* values, size_t count) {
    Check(dtrain_allreduce(values, values, count, DTRAIN_FLOAT64, DTRAIN_MAX));
  };
  peer.ways = {{"separate", false, Reduce}, {"in place", true, Reduce}};
  peer.memories.push_back(
      {"dtrain_alloc", Allocate, [](void* memory) { Check(dtrain_free(memory)); }});
  peers::RunAll(peer, peers::Sizes(argc, argv));
  Check(dtrain_finalize());
  return 0;
}
