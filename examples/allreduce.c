/* SPDX-License-Identifier: Apache-2.0 */
/* The smallest program on libdtrain: every rank contributes its number, all print the sum. */
#include <dtrain/dtrain.h>
#include <stdio.h>
#include <stdlib.h>

static void check(dtrain_status status) {
  if (status == DTRAIN_OK) return;
  fprintf(stderr, "%s\n", dtrain_last_error());
  exit(1); /* without dtrain_finalize: the launcher takes this rank for failed */
}

int main(void) {
  check(dtrain_init(NULL));

  const int64_t mine = dtrain_rank();
  int64_t sum = -1;
  check(dtrain_allreduce(&mine, &sum, 1, DTRAIN_INT64, DTRAIN_SUM));

  printf("rank %d of %d, number %d of %d on node %d: sum of all ranks %lld\n", dtrain_rank(),
         dtrain_size(), dtrain_local_rank(), dtrain_local_size(), dtrain_node_rank(),
         (long long)sum);

  check(dtrain_finalize());
  return 0;
}
