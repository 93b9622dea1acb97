// SPDX-License-Identifier: Apache-2.0
// pmix_group: asks PMIx for a group of all ranks with an id, as Open MPI 5 does in
// MPI_Comm_create_from_group. Prints "refused" if that is not supported, then meets the others.
#include <pmix.h>
#include <stdbool.h>
#include <stdio.h>

int main(void) {
  pmix_proc_t me, all;
  if (PMIx_Init(&me, NULL, 0) != PMIX_SUCCESS) return 3;
  PMIX_LOAD_PROCID(&all, me.nspace, PMIX_RANK_WILDCARD);
  pmix_info_t* wish;
  PMIX_INFO_CREATE(wish, 1);
  const bool yes = true;
  PMIX_INFO_LOAD(&wish[0], PMIX_GROUP_ASSIGN_CONTEXT_ID, &yes, PMIX_BOOL);
  pmix_info_t* results = NULL;
  size_t count = 0;
  const pmix_status_t status = PMIx_Group_construct("ours", &all, 1, wish, 1, &results, &count);
  PMIX_INFO_FREE(wish, 1);
  if (status == PMIX_ERR_NOT_SUPPORTED) printf("refused\n");
  fflush(stdout);
  if (PMIx_Fence(&all, 1, NULL, 0) == PMIX_SUCCESS) printf("met\n");
  return PMIx_Finalize(NULL, 0) == PMIX_SUCCESS && status == PMIX_ERR_NOT_SUPPORTED ? 0 : 4;
}
