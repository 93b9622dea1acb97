// SPDX-License-Identifier: Apache-2.0
// Sums vectors of several sizes over all ranks and checks each element.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "mpi_end.h"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank, size;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (int count = 1; count <= 1 << 18; count *= 64) {
    double* mine = malloc(count * sizeof(double));
    double* sum = malloc(count * sizeof(double));
    for (int i = 0; i < count; ++i) mine[i] = rank + i;
    MPI_Allreduce(mine, sum, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < count; ++i) {
      double wanted = (double)size * (size - 1) / 2 + (double)size * i;
      if (sum[i] != wanted) {
        fprintf(stderr, "rank %d element %d of %d is %f, not %f\n", rank, i, count, sum[i], wanted);
        MPI_Abort(MPI_COMM_WORLD, 3);
      }
    }
    free(mine);
    free(sum);
  }
  if (rank == 0) printf("all sums are right\n");
  End();
  return 0;
}
