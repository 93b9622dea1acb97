// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "launcher/job/cluster.h"

namespace dtrain::job {

// Troubles of nodes, kept until they are told. A thousand nodes that break for one reason cost a
// few bytes each, and sorting happens once, in Text.
class FaultList {
 public:
  void Add(NodeId node, std::string text, int exit_code);  // the text without the host
  void Append(const FaultList& other);
  void Clear();

  bool empty() const { return faults_.empty(); }
  size_t size() const { return faults_.size(); }
  bool Has(const std::string& text) const { return ids_.contains(text); }
  // Of faults, at least one, before the start: the code of the first that is no mistake of the user
  // (kExitUsage), which says nothing while there is another cause; kExitUsage when all are.
  int EarlyExitCode() const;
  std::vector<NodeId> Nodes() const;  // whose they are, in order, each once
  // "node1: text", or a heading and a line per text: "  node1, node2: text". Hosts are told in the
  // order of the hostfile, whoever spoke first.
  std::string Text(const std::string& heading, const Cluster& cluster) const;
  // "node1 <what>: text", one for each, in order of arrival.
  std::vector<std::string> Lines(const std::string& what, const Cluster& cluster) const;

 private:
  struct Fault {
    NodeId node;
    uint32_t text;
    int exit_code;
  };
  std::vector<Fault> faults_;
  std::map<std::string, uint32_t> ids_;
  std::vector<const std::string*> texts_;  // by id; keys of ids_
};

}  // namespace dtrain::job
