// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "launcher/elastic/host_book.h"
#include "launcher/elastic/seats.h"

// The runs of an elastic job, and the round that could be made of them. Pure values.
namespace dtrain::elastic {

// One life of the workers of one host: an AttemptRun with one node. Counts up over the launch.
using RunId = Id<struct RunTag>;

// What is known of a worker since its round was opened, or, before that, since its run began.
enum class Record {
  kNone,
  kReady,    // waits for its place in the next round
  kSuccess,  // has exited with 0
  kFailure,  // has failed, or its host has
};

struct Run {
  std::string host;
  uint32_t first_number = 0;    // its workers' numbers in the job count up from it
  HostSeats seats;              // of its last round, or the one that forms
  std::vector<Record> records;  // by local rank
  std::vector<bool> takes_notices;
  uint32_t waiting = 0;  // connections at its shut door
  bool joined = false;   // a round was opened with it
  bool seated = false;   // it has places in the present round, or the one that forms
  bool ending = false;   // it has failed, or was told to end
  bool again = false;    // ended only to begin with other seats
  bool over = false;

  size_t Count(Record record) const;
  bool lives() const { return !over && !ending; }
  // It would be in the next round, and its number of workers is fixed.
  bool Stays() const;
  // Of a newcomer: all its workers are at the door, or have exited with 0.
  bool IsHere() const;
};

using Runs = std::map<RunId, Run>;

// Records of all that have a place in the present round.
struct Tally {
  size_t none = 0;
  size_t ready = 0;
  size_t success = 0;
  size_t failure = 0;
};

// The runs that live, and those that are over but have places in the present round.
class RunTable {
 public:
  RunTable(RunId first, uint32_t first_number) : next_(first), next_number_(first_number) {}

  RunId Begin(const std::string& host, HostSeats seats);
  Run* Find(RunId id);
  const Run* Find(RunId id) const;
  // Neither over nor ending, and it has that worker; or null.
  Run* Living(RunId id, uint32_t local_rank = 0);
  // Its workers fail, but for those that have succeeded.
  void Fail(Run& run);
  // All that have places are in a round now: their records begin again, and their doors are told.
  std::map<RunId, HostSeats> Open();
  // Those that have failed have no places any more.
  void Close();
  // Forgets what is over, but for runs with places, if these are kept.
  void Sweep(bool keep_seated);

  const Runs& all() const { return all_; }
  Runs& all() { return all_; }
  Tally Records() const;
  // Whose local rank 0 is rank 0 of the present round; 0 and null if it is not there any more.
  std::pair<RunId, const Run*> Coordinator() const;
  // That one can be told of changes, and has not come back yet.
  bool CanTellCoordinator() const;
  // A run ends only to begin with other seats.
  bool MakesRoom() const;
  // A member of the last round waits for its place in the next.
  bool HasSurvivor() const;
  RunId next() const { return next_; }  // for the next attempt
  uint32_t next_number() const { return next_number_; }

 private:
  Runs all_;
  RunId next_;
  uint32_t next_number_;
};

// What a round needs.
struct Least {
  uint32_t ranks = 1;
  uint32_t hosts = 1;
};
// What it may have.
struct Most {
  std::optional<uint32_t> ranks;
  std::optional<uint32_t> hosts;
};

struct Plan {
  struct Place {
    std::string host;
    std::optional<RunId> run;  // none: one would begin
    HostSeats seats;
  };
  std::vector<Place> places;  // by rank
  uint32_t ranks = 0;
  size_t hosts = 0;      // which could be used, if there are places for them or not
  size_t survivors = 0;  // of the places

  bool IsEnough(const Least& least) const;
  const Place* Of(RunId run) const;
};

// The round that these hosts and runs would make now. Hosts that stay come first, as they have the
// job's state, which rank 0 gives to all others. A host whose run is ending is left out.
Plan MakePlan(const Most& most, const std::vector<HostSlots>& usable, const Runs& runs);

// Whether the present round has just these places.
bool IsPresent(const Plan& plan, const Runs& runs);

}  // namespace dtrain::elastic
