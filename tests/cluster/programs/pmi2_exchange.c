// SPDX-License-Identifier: Apache-2.0
// Uses all of PMI-2 that a job of dtrain has, through Slurm's client library, and checks each
// answer. `pmi2_exchange abort CODE`: rank 1 aborts the job while the others are in a fence.
#include <slurm/pmi2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kRounds = 5 };

static int rank = -1;

static void Check(int holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "rank %d: %s\n", rank, what);
  exit(3);
}

static int FromEnvironment(const char* name) {
  const char* text = getenv(name);
  Check(text != NULL, name);
  return atoi(text);
}

// What rank `from` puts in this round: the longest value there is in the last one, and each with
// bytes that PMI-1 could not carry.
static int Value(char* out, int from, int round) {
  int length = round == kRounds - 1 ? PMI2_MAX_VALLEN : 40 + 7 * from;
  memset(out, ';', (size_t)length);
  int n = snprintf(out, PMI2_MAX_VALLEN, "rank=%d; round %d\n", from, round);
  out[n] = '.';
  out[length] = '\0';
  return length;
}

static int ExchangeValues(int size, const char* job) {
  char key[PMI2_MAX_KEYLEN + 1], value[PMI2_MAX_VALLEN + 1], expected[PMI2_MAX_VALLEN + 1];
  int got = 0, length = 0;
  for (int round = 0; round < kRounds; ++round) {
    snprintf(key, sizeof(key), "round%d-rank%d", round, rank);
    Value(value, rank, round);
    Check(PMI2_KVS_Put(key, value) == PMI2_SUCCESS, "a value could not be put");
    Check(PMI2_KVS_Fence() == PMI2_SUCCESS, "the fence failed");
    for (int from = 0; from < size; ++from) {
      snprintf(key, sizeof(key), "round%d-rank%d", round, from);
      Check(PMI2_KVS_Get(job, from, key, value, sizeof(value), &length) == PMI2_SUCCESS,
            "a value could not be got");
      Check(length == Value(expected, from, round) && strcmp(value, expected) == 0,
            "a value is not what was put");
      got += from != rank;
    }
  }
  Check(PMI2_KVS_Get(job, PMI2_ID_NULL, "nobody-put-it", value, sizeof(value), &length) !=
            PMI2_SUCCESS,
        "a value was got that nobody put");
  return got;
}

// Each local rank waits for the one before it, and the first for the last.
static void PassNodeAttributes(int local_rank, int local_size) {
  char name[PMI2_MAX_KEYLEN + 1], value[PMI2_MAX_ATTRVALUE + 1];
  int found = -1;
  Check(PMI2_Info_GetNodeAttr("nobody-set-it", value, sizeof(value), &found, 0) == PMI2_SUCCESS &&
            !found,
        "a node attribute was found that nobody set");
  for (int i = 0; i < 2; ++i) {
    if (i == (local_rank == 0)) {
      int before = (local_rank + local_size - 1) % local_size;
      snprintf(name, sizeof(name), "local%d", before);
      Check(PMI2_Info_GetNodeAttr(name, value, sizeof(value), &found, 1) == PMI2_SUCCESS && found,
            "no node attribute of the local rank before this one");
      snprintf(name, sizeof(name), "set by %d; of %d", before, local_size);
      Check(strcmp(value, name) == 0, "a node attribute of another node, or none");
    } else {
      snprintf(name, sizeof(name), "local%d", local_rank);
      snprintf(value, sizeof(value), "set by %d; of %d", local_rank, local_size);
      Check(PMI2_Info_PutNodeAttr(name, value) == PMI2_SUCCESS, "no node attribute could be set");
    }
  }
}

static void ReadJobAttributes(char* mapping, int size) {
  char value[PMI2_MAX_ATTRVALUE + 1];
  int found = 0;
  Check(PMI2_Info_GetJobAttr("PMI_process_mapping", mapping, size, &found) == PMI2_SUCCESS && found,
        "no process mapping");
  Check(PMI2_Info_GetJobAttr("universeSize", value, sizeof(value), &found) == PMI2_SUCCESS &&
            found && atoi(value) == FromEnvironment("PMI_SIZE"),
        "no universe size, or another");
  Check(
      PMI2_Info_GetJobAttr("physTopology", value, sizeof(value), &found) == PMI2_SUCCESS && !found,
      "a topology that nobody knows");
}

// Each is an error to the caller, and the job goes on.
static void AskForWhatThereIsNot(void) {
  char text[PMI2_MAX_VALLEN + 1];
  Check(PMI2_Nameserv_publish("service", NULL, "port") != PMI2_SUCCESS, "a name was published");
  Check(PMI2_Nameserv_lookup("service", NULL, text, sizeof(text)) != PMI2_SUCCESS,
        "a name was found");
  Check(PMI2_Nameserv_unpublish("service", NULL) != PMI2_SUCCESS, "a name was unpublished");

  const char *command = "/bin/true", *argument = "with; blanks";
  const char** arguments = &argument;
  const int most = 2;
  int count = 1, no_infos = 0, errors[2] = {0, 0};
  const struct MPID_Info* none = NULL;
  Check(PMI2_Job_Spawn(1, &command, &count, &arguments, &most, &no_infos, &none, 0, NULL, text,
                       sizeof(text), errors) != PMI2_SUCCESS,
        "a process was spawned");
}

int main(int argc, char** argv) {
  int spawned = -1, size = 0, appnum = -1;
  Check(PMI2_Init(&spawned, &size, &rank, &appnum) == PMI2_SUCCESS, "PMI2_Init failed");
  Check(rank == FromEnvironment("PMI_RANK") && size == FromEnvironment("PMI_SIZE") &&
            spawned == 0 && appnum == 0,
        "PMI2_Init says what is not so");
  if (argc > 2) {
    if (rank == 1) PMI2_Abort(atoi(argv[2]), "as it was told to");
    PMI2_KVS_Fence();
    return 0;
  }
  char job[PMI2_MAX_VALLEN + 1], mapping[PMI2_MAX_ATTRVALUE + 1];
  Check(PMI2_Job_GetId(job, sizeof(job)) == PMI2_SUCCESS, "no job id");
  Check(strstr(job, getenv("DTRAIN_JOB_ID")) == job, "the id of another job");
  ReadJobAttributes(mapping, sizeof(mapping));
  int got = ExchangeValues(size, job);
  PassNodeAttributes(FromEnvironment("MPI_LOCALRANKID"), FromEnvironment("MPI_LOCALNRANKS"));
  AskForWhatThereIsNot();
  Check(PMI2_KVS_Fence() == PMI2_SUCCESS, "the last fence failed");
  Check(PMI2_Finalize() == PMI2_SUCCESS, "PMI2_Finalize failed");
  printf("rank %d of %d got %d values, mapping %s\n", rank, size, got, mapping);
  return 0;
}
