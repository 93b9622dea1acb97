// SPDX-License-Identifier: Apache-2.0
// mpi_meet FILE: says "in", waits until FILE is there, sums over all ranks and says "met".
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int one = 1, sum = 0, size;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  printf("in\n");
  fflush(stdout);
  while (access(argv[1], F_OK) != 0) usleep(10000);
  MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (sum == size) printf("met\n");
  MPI_Finalize();
  return sum == size ? 0 : 3;
}
