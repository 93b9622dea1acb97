// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "dtrain/v1/job.pb.h"

namespace dtrain::shepherd {

// What else a node has that its workers' variables depend on.
struct NodeTraits {
  bool crowded = false;         // there are more workers than processors
  bool rdma = false;            // InfiniBand, RoCE and the like
  bool names_networks = false;  // a file of Open MPI's parameters says which networks it uses
  std::string caches{};         // NodeCaches::folder
};

// What ties a worker to its shepherd.
struct WorkerTies {
  int pmi = -1;       // number in the worker of its end of the PMI socket; -1: none
  int page = -1;      // of the memory it shares with the shepherd
  uint16_t pmix = 0;  // the port of the node's PMIx; 0: none
  NodeTraits traits{};
  std::string shepherd{};       // os::ProcessMark of it
  std::string pid_namespace{};  // in which that names a process
  std::string error_file{};     // where PyTorch writes why it fails; empty: nowhere
  std::string state{};          // StateFolder::path, "none": here is none; empty: no node keeps any
};

// The environments of a job's workers on one node. PURE.
//
// From weak to strong: what the node gave the agent (all of it, or only the host-bound names),
// what the user forwarded, minus what an outer launcher left there, then the worker's own
// variables; a name the user gave with -x is never replaced. docs/environment.md documents every
// variable.
class WorkerEnv {
 public:
  // `part` must stay.
  WorkerEnv(const v1::JobPart& part, const std::vector<std::string>& agent_env);
  // The whole environment of one worker, "NAME=value" each, sorted by name.
  std::vector<std::string> Of(const v1::WorkerSpec& worker, const WorkerTies& ties) const;

 private:
  // What all workers of a program have.
  struct Common {
    std::set<std::string> given;  // with -x
    std::map<std::string, std::string> vars;
  };
  const v1::JobPart& part_;
  std::vector<Common> common_;  // by program
};

}  // namespace dtrain::shepherd
