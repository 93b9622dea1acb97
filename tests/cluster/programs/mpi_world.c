// SPDX-License-Identifier: Apache-2.0
// mpi_world SIZE: everything that needs the launcher to have told the ranks of each other: the size
// of the world, a sum over it, which ranks share a host, memory shared on a host, one-sided reads
// from every rank, a communicator of every second rank; and what must be refused without ending the
// job: more processes, names. Rank 0 prints "world SIZE is right, ..." when all of it held on every
// rank, and the ranks on each host.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                        \
  do {                                                                          \
    if (!(condition)) {                                                         \
      fprintf(stderr, "rank %d of %d: %s is not so\n", rank, size, #condition); \
      MPI_Abort(MPI_COMM_WORLD, 3);                                             \
    }                                                                           \
  } while (0)

static int rank, size;

static int SumOf(MPI_Comm comm, int value) {
  int sum = 0;
  MPI_Allreduce(&value, &sum, 1, MPI_INT, MPI_SUM, comm);
  return sum;
}

static void CheckSharedMemory(MPI_Comm host) {
  int mine, count, *memory, *first;
  MPI_Comm_rank(host, &mine);
  MPI_Comm_size(host, &count);
  MPI_Win window;
  MPI_Win_allocate_shared(sizeof(int), sizeof(int), MPI_INFO_NULL, host, &memory, &window);
  MPI_Win_fence(0, window);
  *memory = 100 + mine;
  MPI_Win_fence(0, window);
  MPI_Aint bytes;
  int unit;
  MPI_Win_shared_query(window, (mine + 1) % count, &bytes, &unit, &first);
  CHECK(*first == 100 + (mine + 1) % count);
  MPI_Win_fence(0, window);
  MPI_Win_free(&window);
}

static void CheckOneSided(void) {
  int mine = 7 * rank, got = -1;
  MPI_Win window;
  MPI_Win_create(&mine, sizeof(mine), sizeof(mine), MPI_INFO_NULL, MPI_COMM_WORLD, &window);
  for (int other = 0; other < size; ++other) {
    MPI_Win_fence(0, window);
    MPI_Get(&got, 1, MPI_INT, (rank + other) % size, 0, 1, MPI_INT, window);
    MPI_Win_fence(0, window);
    CHECK(got == 7 * ((rank + other) % size));
  }
  MPI_Win_free(&window);
}

static void CheckRefused(void) {
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  char port[MPI_MAX_PORT_NAME] = "";
  CHECK(MPI_Lookup_name("nobody", MPI_INFO_NULL, port) != MPI_SUCCESS);
  MPI_Comm children = MPI_COMM_NULL;
  int code = 0;
  CHECK(MPI_Comm_spawn("/bin/true", MPI_ARGV_NULL, 1, MPI_INFO_NULL, 0, MPI_COMM_SELF, &children,
                       &code) != MPI_SUCCESS);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  CHECK(argc > 1 && size == atoi(argv[1]));
  CHECK(SumOf(MPI_COMM_WORLD, rank) == size * (size - 1) / 2);

  MPI_Comm host, half;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &host);
  int on_host, local;
  MPI_Comm_size(host, &on_host);
  MPI_Comm_rank(host, &local);
  CHECK(getenv("DTRAIN_LOCAL_SIZE") == NULL || on_host == atoi(getenv("DTRAIN_LOCAL_SIZE")));
  CHECK(getenv("DTRAIN_RANK") == NULL || rank == atoi(getenv("DTRAIN_RANK")));
  CheckSharedMemory(host);
  CheckOneSided();
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
  CHECK(SumOf(half, 1) == (size + 1 - rank % 2) / 2);
  CheckRefused();

  const int hosts = SumOf(MPI_COMM_WORLD, local == 0);
  if (rank == 0) printf("world %d is right, on %d hosts\n", size, hosts);
  if (local == 0) printf("%d ranks here, the first is %d\n", on_host, rank);
  MPI_Comm_free(&half);
  MPI_Comm_free(&host);
  MPI_Finalize();
  return 0;
}
