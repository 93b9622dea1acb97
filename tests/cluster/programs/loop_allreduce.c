/* SPDX-License-Identifier: Apache-2.0 */
/* All-reduces until it is ended: a training loop for tests of what disturbs one. PROGRESS names a
   file that holds the number of rounds. */
#include <stdio.h>
#include <stdlib.h>

#include "dtrain/dtrain.h"

int main(void) {
  enum { kCount = 1 << 16 };
  float* data = calloc(kCount, sizeof(float));
  long rounds = getenv("ROUNDS") != NULL ? atol(getenv("ROUNDS")) : -1;
  FILE* progress = getenv("PROGRESS") != NULL ? fopen(getenv("PROGRESS"), "w") : NULL;
  if (dtrain_init(NULL) != DTRAIN_OK) goto failed;
  for (long i = 0; i != rounds; ++i) {
    data[0] = 1;
    dtrain_mark_begin("step");
    if (dtrain_allreduce(data, data, kCount, DTRAIN_FLOAT32, DTRAIN_SUM) != DTRAIN_OK) goto failed;
    dtrain_mark_end();
    if ((int)data[0] != dtrain_size()) {
      fprintf(stderr, "wrong sum %g\n", data[0]);
      return 9;
    }
    if (progress != NULL) {
      rewind(progress);
      fprintf(progress, "%ld\n", i);
      fflush(progress);
    }
    if (i == 20) {
      printf("rank %d goes\n", dtrain_rank());
      fflush(stdout);
    }
  }
  if (dtrain_finalize() != DTRAIN_OK) goto failed;
  free(data);
  return 0;
failed:
  fprintf(stderr, "loop_allreduce: %s\n", dtrain_last_error());
  return 3;
}
