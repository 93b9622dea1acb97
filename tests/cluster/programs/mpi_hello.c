// SPDX-License-Identifier: Apache-2.0
// An ordinary MPI program: prints rank, size and host, and has rank 0 hear from everyone.
#include <mpi.h>
#include <stdio.h>

#include "mpi_end.h"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank, size, length, heard = 0;
  char name[MPI_MAX_PROCESSOR_NAME];
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Get_processor_name(name, &length);
  if (rank != 0) {
    MPI_Send(&rank, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
  } else {
    for (int from = 1, got; from < size; ++from) {
      MPI_Recv(&got, 1, MPI_INT, from, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      heard += got == from;
    }
    printf("heard %d\n", heard);
  }
  printf("hello from %d of %d on %s\n", rank, size, name);
  End();
  return 0;
}
