// SPDX-License-Identifier: Apache-2.0
#pragma once

// How the system's scheduler treats us beside the work that we start.
namespace dtrain::os {

// From now on no thread of this process interrupts a running one when it wakes up: it waits until
// that sleeps or has had its slice, some milliseconds at most (SCHED_BATCH, sched(7)). So workers
// run on undisturbed, and our own threads, which wake each other for each message, do so in half of
// the switches. Only where we are scheduled as usual; what Spawn starts still is. Before the first
// thread is made.
void InterruptNobody();
bool InterruptsNobody();

}  // namespace dtrain::os
