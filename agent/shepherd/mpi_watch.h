// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/string_view.h"

namespace dtrain::shepherd {

// What one look at a process shows of MPI.
struct MpiSigns {
  std::string library{};  // the MPI library that it has mapped, "libmpi.so.40"; empty: none
  bool cut_off = false;   // it was not given the variables by which it could join the job's world
  bool alone = false;     // it has initialised MPI, in a world of its own
  // It may be: Open MPI opens the module for that in every process, and in those that can join
  // closes it a moment later.
  bool perhaps_alone = false;
};

// From the process's /proc/PID/maps and /proc/PID/environ, which may be cut short. Pure.
MpiSigns ReadMpiSigns(absl::string_view maps, absl::string_view environment);
// Whether a command line ("a\0b\0") is that of the daemon which Open MPI 4 starts for a process
// that is alone.
bool IsSingletonDaemon(absl::string_view command_line);
// Whether a program of that name (/proc/PID/comm) starts ranks of worlds of its own, which are
// none of ours.
bool IsMpiLauncher(absl::string_view name);

// Finds ranks of one node that are each a world of their own although the job has more: without
// its variables (env -i, some containers) an MPI program finds nobody, computes alone and ends
// with 0. Pure.
class MpiWatch {
 public:
  // The job has so many ranks.
  explicit MpiWatch(uint32_t world_size) : world_size_(world_size) {}

  // The rank is in the job's world, by PMI or PMIx: nothing more is to be known of it.
  void OnJoined(uint32_t rank) { ranks_[rank] = {.joined = true}; }
  // It is meant to compute alone.
  void Exempt(uint32_t rank) { OnJoined(rank); }
  // Of one of the rank's processes.
  void OnLook(uint32_t rank, const MpiSigns& signs);
  // Whether another look can tell more.
  bool WantsLook(uint32_t rank) const;
  // The rank has ended with 0. Why that is no success; "": nothing is wrong with it.
  std::string OnSuccess(uint32_t rank);

  // For the user, about what was found since the last call; "": nothing.
  std::string TellAlone();
  // When all have ended: of those that may have been alone.
  std::string TellSuspects() const;

 private:
  struct State {
    bool joined = false;
    bool alone = false;
    bool perhaps_alone = false;  // at the last look
    bool told = false;
    bool succeeded = false;
    std::string library{};  // of a process that cannot join
  };
  const uint32_t world_size_;
  std::map<uint32_t, State> ranks_;
};

}  // namespace dtrain::shepherd
