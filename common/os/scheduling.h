// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

// How the system's scheduler treats us beside the work that we start.
namespace dtrain::os {

// From now on no thread of this process interrupts a running one when it wakes up: it waits until
// that sleeps or has had its slice, some milliseconds at most (SCHED_BATCH, sched(7)). So workers
// run on undisturbed, and our own threads, which wake each other for each message, do so in two
// thirds of the switches. Only where we are scheduled as usual; what Spawn starts still is. Where
// the system does not allow it (seccomp), nothing changes but that. Before the first thread is
// made.
void InterruptNobody();
// Whether it came to that, so that children have to be put back.
bool InterruptsNobody();

// The cpus this process may run on, sorted: what workers can be pinned to. Empty when the kernel
// does not tell.
std::vector<int> AllowedCpus();
// Those it may run on if it asks for all: its cgroup's. Before the first thread is made.
std::vector<int> PossibleCpus();

}  // namespace dtrain::os
