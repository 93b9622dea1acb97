// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/barrier_core.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/text.h"

namespace dtrain::rendezvous {

BarrierCore::BarrierCore(JoinKey key, std::vector<std::string> hosts, bool shared)
    : key_(std::move(key)), shared_(shared) {
  members_.resize(hosts.size());
  for (size_t i = 0; i < hosts.size(); ++i) members_[i].host = std::move(hosts[i]);
}

absl::Status BarrierCore::CheckKey(const JoinKey& key) const {
  if (key.job_id != key_.job_id) {
    return absl::PermissionDeniedError(absl::StrCat(
        "rejected: the agent at this address belongs to job \"", Escape(key.job_id, 64),
        "\", this is job ", Escape(key_.job_id, 64), "; check what this name resolves to"));
  }
  if (key.incarnation != key_.incarnation) {
    return absl::PermissionDeniedError(
        absl::StrCat("rejected: the agent at this address serves another launcher of job ",
                     Escape(key_.job_id, 64), "; check what this name resolves to"));
  }
  if (key.attempt != key_.attempt) {
    return absl::FailedPreconditionError(
        absl::StrCat("rejected: its agent joins attempt ", key.attempt,
                     ", which is not the current one (", key_.attempt, "): stale epoch"));
  }
  return absl::OkStatus();
}

absl::Status BarrierCore::Join(NodeId node, const JoinKey& key, const Machine& machine) {
  if (node.value() >= members_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("node ", node.value(), " is not one of ", Count(members_.size(), "node")));
  }
  Member& member = members_[node.value()];
  if (absl::Status status = CheckKey(key); !status.ok()) return status;
  if (member.joined) {
    if (member.machine == machine) return absl::OkStatus();
    return absl::FailedPreconditionError(
        "rejected: it rejoined as a different machine: it was rebooted, or its name now resolves "
        "elsewhere");
  }
  if (complete()) {
    return absl::FailedPreconditionError("rejected: the job has already started");
  }
  // Network namespaces have the same number on many machines: without a boot id nothing can be
  // said.
  if (!machine.boot_id.empty() && !shared_) {
    const auto [it, first] =
        machines_.try_emplace({machine.boot_id, machine.network_namespace}, node.value());
    if (!first) {
      return absl::AlreadyExistsError(
          absl::StrCat(members_[it->second].host, " and ", member.host,
                       " are two names of one machine; keep one of them in the host list and give "
                       "it the slots of both, or, if they are containers that share its network, "
                       "use --allow-same-machine"));
    }
  }
  member.joined = true;
  member.machine = machine;
  ++joined_;
  return absl::OkStatus();
}

void BarrierCore::SetWaitingFor(NodeId node, std::string what) {
  if (node.value() < members_.size()) members_[node.value()].waiting_for = std::move(what);
}

bool BarrierCore::has_joined(NodeId node) const {
  return node.value() < members_.size() && members_[node.value()].joined;
}

std::vector<MissingNode> BarrierCore::missing() const {
  std::vector<MissingNode> out;
  for (size_t i = 0; i < members_.size(); ++i) {
    if (members_[i].joined) continue;
    out.push_back({NodeId(static_cast<uint32_t>(i)), members_[i].host, members_[i].waiting_for});
  }
  return out;
}

std::string FormatMissing(const std::vector<MissingNode>& missing, size_t limit) {
  std::vector<std::string> names;
  for (const MissingNode& node : missing) {
    names.push_back(node.waiting_for.empty()
                        ? node.host
                        : absl::StrCat(node.host, " (", node.waiting_for, ")"));
  }
  return FormatHosts(names, limit);
}

std::string FormatHosts(const std::vector<std::string>& hosts, size_t limit) {
  if (hosts.size() <= limit) return absl::StrJoin(hosts, ", ");
  std::string out;
  for (size_t i = 0; i < limit; ++i) absl::StrAppend(&out, i == 0 ? "" : ", ", hosts[i]);
  absl::StrAppend(&out, " and ", hosts.size() - limit, " more");
  return out;
}

}  // namespace dtrain::rendezvous
