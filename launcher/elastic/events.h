// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "common/base/clock.h"
#include "launcher/elastic/host_book.h"
#include "launcher/elastic/runs.h"
#include "launcher/elastic/seats.h"
#include "launcher/job/job_core.h"

// What ElasticCore is told, and what it wants done.
namespace dtrain::elastic {

// ---- events -------------------------------------------------------------------------------
struct MissingHost {
  std::string host;
  std::string why;
};
// All hosts that are there, surveyed, in the order of the list. One with a run is, too, as long as
// it is listed.
struct HostsFound {
  std::vector<HostSlots> hosts;
  std::vector<MissingHost> missing;  // listed, but not there
};
// So many connections are held by the door of a newcomer.
struct DoorWaits {
  RunId run;
  uint32_t clients = 0;
};
// A worker wants its place in the next round.
struct SeatAsked {
  RunId run;
  uint32_t local_rank = 0;
};
struct WorkerEnded {
  RunId run;
  uint32_t local_rank = 0;
  int exit_code = 0;  // what `dtrain launch` would exit with; 0: it succeeded
  std::string cause;  // "rank 5 exited with code 1 after 12.3 s"
};
// Nothing of it lives, or its host is lost.
struct RunOver {
  RunId run;
  job::Verdict verdict;  // its rank is the local rank
  std::string cause;     // one line, without the host's name
  TimePoint dead_at;     // the workers of a lost host have ended by then; the past: it is not lost
};
// A worker can be told of changes of hosts.
struct Registered {
  RunId run;
  uint32_t local_rank = 0;
  std::string not_understood;  // why it cannot; else empty
};
struct NoticeDone {
  RunId run;
  uint32_t timestamp = 0;
  std::string failed;  // why it was not delivered; else empty
};
struct StopAsked {
  int signal = 0;
  std::string from = {};  // as for job::EndedBy
};
// By the agent of a host whose run was ending: "node1: the job was stopped here by alice". Else
// that is how its run ends.
struct StoppedThere {
  std::string text;
};
struct Tick {};

using ElasticEvent = std::variant<HostsFound, DoorWaits, SeatAsked, WorkerEnded, RunOver,
                                  Registered, NoticeDone, StopAsked, StoppedThere, Tick>;

// ---- actions ------------------------------------------------------------------------------
struct BeginRun {
  RunId run;
  std::string host;
  uint32_t first_number = 0;
  HostSeats seats;
};
struct EndRun {
  RunId run;
  std::string why;
  bool cancels = false;  // see job::EndAsked; may follow one that does not
};
// To the doors of all these runs.
struct OpenRound {
  uint64_t round = 0;
  std::map<RunId, HostSeats> seats;
};
// Tell that worker.
struct Notify {
  RunId run;
  uint32_t local_rank = 0;
  uint32_t timestamp = 0;
  HostChange change = kNoChange;
};
struct Announce {
  std::string text;  // one line for the user, complete
};
// Nothing of the attempt lives.
struct EndElastic {
  job::Verdict verdict;  // kWorker: its rank is the worker's number
  std::string cause;     // one line, for people
  std::string host;      // whose fault it is; may be empty
  TimePoint dead_at;     // as in RunOver, of all
};

using ElasticAction = std::variant<BeginRun, EndRun, OpenRound, Notify, Announce, EndElastic>;

}  // namespace dtrain::elastic
