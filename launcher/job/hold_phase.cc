// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/hold_phase.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

namespace dtrain::job {
namespace {

// Master port, JAX coordinator port, and that of the ranks' key-value server.
constexpr uint32_t kPorts = 3;

}  // namespace

// Those of rank 0's node that are the job's: for the store, JAX, Horovod. Then one for each rank,
// where ranks need their own.
uint32_t HoldPhase::PortsOf(size_t plan_index) const {
  const bool each = !cluster_.options().plan.tensorflow.empty();
  const size_t of_ranks = each ? cluster_.plan().nodes[plan_index].workers.size() : 0;
  return static_cast<uint32_t>(of_ranks + (plan_index == cluster_.master() ? kPorts : 0));
}

void HoldPhase::Begin(std::vector<rendezvous::Chosen> addresses) {
  cluster_.Enter(State::kHolding);
  const size_t nodes = cluster_.plan().nodes.size();
  points_ = {};
  points_.addresses = std::move(addresses);
  points_.ports.resize(nodes);
  asked_.assign(nodes, false);
  due_ = 0;
  for (size_t i = 0; i < nodes; ++i) {
    const uint32_t count = PortsOf(i);
    if (count == 0) continue;
    const bool is_master = i == cluster_.master();
    ++due_;
    asked_[i] = true;
    cluster_.SetWaitingFor(cluster_.planned(i),
                           is_master ? "ports for rank 0" : "ports for its ranks");
    v1::HoldPorts& hold = *out_.ToAgent(cluster_.planned(i)).mutable_hold_ports();
    hold.set_count(count);
    // Those that we serve: ranks of other nodes may start first.
    if (is_master) hold.set_listening(cluster_.options().part.agent_store() ? 2 : 1);
  }
}

absl::Status HoldPhase::OnPortsHeld(const Event& event) {
  const AgentMessage& message = OfAgent(event);
  const std::optional<uint32_t> index = cluster_.node(message.node).plan_index;
  if (!index || !asked_[*index]) return absl::InvalidArgumentError("PortsHeld unasked");
  asked_[*index] = false;
  const auto& held = message.event.ports_held().ports();
  const auto usable = [](uint32_t port) { return port > 0 && port < 65536; };
  const auto count = static_cast<int>(PortsOf(*index));
  const bool differ = std::set<uint32_t>(held.begin(), held.end()).size() == PortsOf(*index);
  if (held.size() != count || !differ || !std::all_of(held.begin(), held.end(), usable)) {
    return absl::InvalidArgumentError("PortsHeld with wrong ports");
  }
  cluster_.SetWaitingFor(message.node, "");
  points_.ports[*index].assign(held.begin(), held.end());
  if (*index == cluster_.master()) TakeOursOf(points_.ports[*index]);
  --due_;
  StartIfReady();
  return absl::OkStatus();
}

// The last listen.
void HoldPhase::TakeOursOf(std::vector<uint32_t>& held) {
  const auto front = [&held] {
    const uint32_t port = held.front();
    held.erase(held.begin());
    return port;
  };
  const auto back = [&held] {
    const uint32_t port = held.back();
    held.pop_back();
    return port;
  };
  points_.rendezvous_port = back();
  points_.master_port = cluster_.options().part.agent_store() ? back() : front();
  points_.coordinator_port = front();
}

absl::Status HoldPhase::OnReserved(const Event& event) {
  if (absl::Status status = reserve_.OnReserved(OfAgent(event)); !status.ok()) return status;
  StartIfReady();
  return absl::OkStatus();
}

void HoldPhase::StartIfReady() {
  if (cluster_.state() != State::kHolding || due_ > 0 || !reserve_.all_answered()) return;
  if (early_faults_.any()) return;  // to be told when they have settled
  if (!reserve_.IsRefused()) start_.Begin(std::exchange(points_, {}));
}

}  // namespace dtrain::job
