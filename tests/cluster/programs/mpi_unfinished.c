// SPDX-License-Identifier: Apache-2.0
// mpi_unfinished THEN [CODE]: after MPI_Init rank 1 ends with CODE (0) without MPI_Finalize. The
// others, by THEN: "barrier": wait for it; "finalize": call MPI_Finalize at once; "too": end
// likewise; "wait": do nothing; "fail": exit with 7 a little later.
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char** argv) {
  int rank;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (strcmp(argv[1], "too") == 0) {
    MPI_Barrier(MPI_COMM_WORLD);
    _exit(0);
  }
  if (strcmp(argv[1], "fail") == 0) MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 1) _exit(argc > 2 ? atoi(argv[2]) : 0);
  if (strcmp(argv[1], "wait") == 0) pause();
  if (strcmp(argv[1], "fail") == 0) {
    usleep(300000);
    _exit(7);
  }
  if (strcmp(argv[1], "barrier") == 0) MPI_Barrier(MPI_COMM_WORLD);
  MPI_Finalize();
  return 0;
}
