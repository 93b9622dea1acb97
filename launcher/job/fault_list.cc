// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/fault_list.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"
#include "rendezvous/barrier_core.h"

namespace dtrain::job {
namespace {

constexpr size_t kMaxLines = 32;  // of one message

}  // namespace

void FaultList::Add(NodeId node, std::string text, int exit_code) {
  const auto [it, fresh] = ids_.try_emplace(std::move(text), static_cast<uint32_t>(texts_.size()));
  if (fresh) texts_.push_back(&it->first);
  faults_.push_back({node, it->second, exit_code});
}

void FaultList::Append(const FaultList& other) {
  for (const Fault& fault : other.faults_) {
    Add(fault.node, *other.texts_[fault.text], fault.exit_code);
  }
}

void FaultList::Clear() {
  faults_.clear();
  texts_.clear();
  ids_.clear();
}

int FaultList::EarlyExitCode() const {
  const auto other = std::find_if(faults_.begin(), faults_.end(),
                                  [](const Fault& fault) { return fault.exit_code != kExitUsage; });
  return other == faults_.end() ? kExitUsage : other->exit_code;
}

std::vector<NodeId> FaultList::Nodes() const {
  std::vector<NodeId> nodes;
  for (const Fault& fault : faults_) nodes.push_back(fault.node);
  std::sort(nodes.begin(), nodes.end());
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  return nodes;
}

std::string FaultList::Text(const std::string& heading, const Cluster& cluster) const {
  std::vector<Fault> sorted = faults_;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Fault& a, const Fault& b) { return a.node < b.node; });
  std::vector<std::vector<std::string>> hosts_of(texts_.size());
  std::vector<uint32_t> order;
  for (const Fault& fault : sorted) {
    std::vector<std::string>& hosts = hosts_of[fault.text];
    if (hosts.empty()) order.push_back(fault.text);
    if (hosts.empty() || hosts.back() != cluster.host(fault.node)) {
      hosts.push_back(cluster.host(fault.node));
    }
  }
  const auto line = [&](uint32_t text) {
    return absl::StrCat(rendezvous::FormatHosts(hosts_of[text]), ": ", *texts_[text]);
  };
  if (order.size() == 1) return line(order[0]);
  std::string message = heading;
  for (size_t i = 0; i < order.size() && i < kMaxLines; ++i) {
    absl::StrAppend(&message, "\n  ", line(order[i]));
  }
  if (order.size() > kMaxLines) {
    absl::StrAppend(&message, "\n  and ", order.size() - kMaxLines, " more");
  }
  return message;
}

std::vector<std::string> FaultList::Lines(const std::string& what, const Cluster& cluster) const {
  std::vector<std::string> lines;
  for (const Fault& fault : faults_) {
    lines.push_back(absl::StrCat(cluster.host(fault.node), " ", what, ": ", *texts_[fault.text]));
  }
  return lines;
}

}  // namespace dtrain::job
