// SPDX-License-Identifier: Apache-2.0
// Times MPI_Allreduce; built with Open MPI and with MPICH.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include "allreduce_peer.h"
#include "mpi_end.h"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  peers::Peer peer;
  MPI_Comm_rank(MPI_COMM_WORLD, &peer.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &peer.size);
  peer.barrier = [] { MPI_Barrier(MPI_COMM_WORLD); };
  peer.max = [](double* values, size_t count) {
    MPI_Allreduce(MPI_IN_PLACE, values, static_cast<int>(count), MPI_DOUBLE, MPI_MAX,
                  MPI_COMM_WORLD);
  };
  peer.ways = {{"separate", false,
                [](const float* in, float* out, size_t n) {
                  MPI_Allreduce(in, out, static_cast<int>(n), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
                }},
               {"in place", true, [](const float*, float* out, size_t n) {
                  MPI_Allreduce(MPI_IN_PLACE, out, static_cast<int>(n), MPI_FLOAT, MPI_SUM,
                                MPI_COMM_WORLD);
                }}};
  peer.memories.push_back({"MPI_Alloc_mem",
                           [](size_t bytes) {
                             void* memory = nullptr;
                             MPI_Alloc_mem(static_cast<MPI_Aint>(bytes), MPI_INFO_NULL, &memory);
                             return memory;
                           },
                           [](void* memory) { MPI_Free_mem(memory); }});
  peers::RunAll(peer, peers::Sizes(argc, argv));
  End();
  return 0;
}
