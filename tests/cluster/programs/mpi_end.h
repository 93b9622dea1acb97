// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

// MPI_Finalize; or, with SKIP_FINALIZE set, an exit after a barrier. MPICH 4.0 on UCX over TCP
// (Debian 12) often hangs in MPI_Finalize when ranks on several hosts have talked:
// a rank that closes a connection needs its peer to move, and the peer sits in the PMI barrier.
// It does so under mpiexec.hydra just as under dtrain.
static inline void End(void) {
  if (getenv("SKIP_FINALIZE") == NULL) {
    MPI_Finalize();
    return;
  }
  MPI_Barrier(MPI_COMM_WORLD);
  fflush(stdout);
  _exit(0);
}
