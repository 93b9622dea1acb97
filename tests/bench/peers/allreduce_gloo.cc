// SPDX-License-Identifier: Apache-2.0
// Times Gloo's all-reduce, by each of its algorithms. RANK, WORLD_SIZE and GLOO_SOCKET_IFNAME as
// for PyTorch; the ranks meet in the folder STORE, which all hosts see.
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <memory>

#include "allreduce_peer.h"

namespace {

using Algorithm = gloo::AllreduceOptions::Algorithm;
using Context = std::shared_ptr<gloo::Context>;

template <typename T>
void Reduce(const Context& context, const T* in, T* out, size_t n, Algorithm algorithm,
            void (*function)(void*, const void*, const void*, size_t)) {
  gloo::AllreduceOptions options(context);
  options.setAlgorithm(algorithm);
  if (in != out) options.setInput(const_cast<T*>(in), n);
  options.setOutput(out, n);
  options.setReduceFunction(function);
  gloo::allreduce(options);
}

peers::Way Way(const Context& context, const char* name, bool in_place, Algorithm algorithm) {
  return {name, in_place, [=](const float* in, float* out, size_t n) {
            Reduce<float>(context, in, out, n, algorithm, &gloo::sum<float>);
          }};
}

// Gloo's older form: its object is made for one buffer and used again and again.
peers::Way HalvingDoubling(const Context& context) {
  struct Kept {
    float* data = nullptr;
    size_t count = 0;
    std::unique_ptr<gloo::AllreduceHalvingDoubling<float>> algorithm;
  };
  auto kept = std::make_shared<Kept>();
  return {"halving doubling", true, [=](const float*, float* out, size_t n) {
            if (kept->data != out || kept->count != n) {
              kept->algorithm = std::make_unique<gloo::AllreduceHalvingDoubling<float>>(
                  context, std::vector<float*>{out}, static_cast<int>(n));
              kept->data = out;
              kept->count = n;
            }
            kept->algorithm->run();
          }};
}

}  // namespace

int main(int argc, char** argv) {
  const int rank = std::atoi(std::getenv("RANK"));
  const int size = std::atoi(std::getenv("WORLD_SIZE"));
  gloo::transport::tcp::attr attributes;
  attributes.iface = std::getenv("GLOO_SOCKET_IFNAME");
  std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(attributes);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
  gloo::rendezvous::FileStore store(std::getenv("STORE"));
  context->connectFullMesh(store, device);
  peers::Peer peer;
  peer.rank = rank;
  peer.size = size;
  peer.barrier = [&] {
    gloo::BarrierOptions options(context);
    gloo::barrier(options);
  };
  peer.max = [&](double* values, size_t count) {
    Reduce<double>(context, values, values, count, Algorithm::RING, &gloo::max<double>);
  };
  peer.ways = {Way(context, "ring", false, Algorithm::RING),
               Way(context, "ring in place", true, Algorithm::RING),
               Way(context, "bcube", false, Algorithm::BCUBE), HalvingDoubling(context)};
  peers::RunAll(peer, peers::Sizes(argc, argv));
  peer.barrier();
  std::_Exit(0);  // a rank whose peers leave first would throw in its destructors
}
