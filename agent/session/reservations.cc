// SPDX-License-Identifier: Apache-2.0
#include "agent/session/reservations.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/cpulist.h"
#include "common/base/text.h"

namespace dtrain::session {
namespace {

absl::Status AddCores(const std::string& cpulist, std::set<int>& cores) {
  const absl::Status too_many = absl::InvalidArgumentError(absl::StrCat(
      "a job asks for more cores of one node than the ", kMostCores, " that it has at most"));
  if (cpulist.size() > kMostCores * sizeof("65535")) return too_many;
  const auto cpus = ParseCpuList(cpulist);
  if (!cpus.ok()) return cpus.status();
  if (cpus->size() > kMostCores) return too_many;
  cores.insert(cpus->begin(), cpus->end());
  return absl::OkStatus();
}

std::string Format(const std::set<int>& cores) {
  return FormatCpuList({cores.begin(), cores.end()});
}

}  // namespace

absl::StatusOr<Share> ShareOf(const v1::Reserve& reserve) {
  if (reserve.gpu_uuids_size() > kMostGpus) {
    return absl::InvalidArgumentError(absl::StrCat("a job asks for ", reserve.gpu_uuids_size(),
                                                   " GPUs of one node, which has ", kMostGpus,
                                                   " at most"));
  }
  Share share;
  share.gpus.insert(reserve.gpu_uuids().begin(), reserve.gpu_uuids().end());
  if (absl::Status added = AddCores(reserve.cpulist(), share.cores); !added.ok()) return added;
  return share;
}

absl::Status Reservations::Reserve(Key session, const std::string& holder, Share share) {
  std::map<Key, Share> others;  // of it
  for (const std::string& gpu : share.gpus) {
    const auto of = gpus_.find(gpu);
    if (of != gpus_.end() && of->second != session) others[of->second].gpus.insert(gpu);
  }
  for (const int core : share.cores) {
    const auto of = cores_.find(core);
    if (of != cores_.end() && of->second != session) others[of->second].cores.insert(core);
  }
  std::vector<std::string> held;
  for (const auto& [other, both] : others) {
    const std::string& by = holdings_.at(other).holder;
    if (!both.gpus.empty()) {
      held.push_back(absl::StrCat(Count(both.gpus.size(), "GPU"), " (",
                                  Escape(*both.gpus.begin(), 64),
                                  both.gpus.size() > 1 ? ", ..." : "", ") by ", by));
    }
    if (!both.cores.empty()) held.push_back(absl::StrCat("cores ", Format(both.cores), " by ", by));
  }
  for (const Withheld& each : withheld_) {
    for (const HeldGpu& gpu : each.gpus.FindHeld()) {
      if (share.gpus.count(gpu.uuid) > 0) {
        held.push_back(absl::StrCat("after ", each.holder, ": ", gpu.text));
      }
    }
  }
  if (!held.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("held: ", absl::StrJoin(held, "; ")));
  }
  Release(session);
  if (share.gpus.empty() && share.cores.empty()) return absl::OkStatus();
  for (const std::string& gpu : share.gpus) gpus_[gpu] = session;
  for (const int core : share.cores) cores_[core] = session;
  holdings_[session] = {holder, std::move(share)};
  return absl::OkStatus();
}

void Reservations::Release(Key session) {
  const auto held = holdings_.find(session);
  if (held == holdings_.end()) return;
  for (const std::string& gpu : held->second.share.gpus) gpus_.erase(gpu);
  for (const int core : held->second.share.cores) cores_.erase(core);
  holdings_.erase(held);
}

absl::Status Reservations::ClaimPorts(Key session, const spawn::Owner& owner, size_t count) {
  size_t of_user = 0, of_all = 0;
  for (const auto& [other, ports] : ports_) {
    if (other == session) continue;
    of_all += ports.count;
    if (ports.uid == owner.uid) of_user += ports.count;
  }
  if (of_user + count > kMostPortsOfUser) {
    return absl::ResourceExhaustedError(
        absl::StrCat("jobs of ", Escape(owner.name, 64), " hold ", of_user, " ports here, of the ",
                     kMostPortsOfUser, " that one user's may hold"));
  }
  if (of_all + count > kMostPorts && of_user + count > kPortsOfAnyUser) {
    return absl::ResourceExhaustedError(absl::StrCat("jobs hold ", of_all, " ports here, of the ",
                                                     kMostPorts, " that all may hold"));
  }
  ports_[session] = {owner.uid, count};
  return absl::OkStatus();
}

void Reservations::Withhold(const std::string& holder, const GpuRelease& gpus) {
  if (gpus.held()) withheld_.push_back({holder, gpus});
}

void Reservations::Withhold(const std::vector<v1::GpuUse>& uses) {
  for (const v1::GpuUse& use : uses) Withhold(use.holder(), GpuRelease(use));
}

std::vector<v1::GpuUse> Reservations::SaveWithheld() const {
  std::vector<v1::GpuUse> out;
  for (const Withheld& each : withheld_) {
    out.push_back(each.gpus.Save());
    out.back().set_holder(each.holder);
  }
  return out;
}

void Reservations::Mark(Key session, v1::Inventory& inventory) {
  inventory.set_reserves(true);
  // Without a look at the GPUs nothing new is known of them.
  if (inventory.gpus_size() > 0) {
    for (Withheld& each : withheld_) {
      each.gpus.Again({inventory.gpus().begin(), inventory.gpus().end()});
    }
    withheld_.remove_if([](const Withheld& each) { return !each.gpus.held(); });
  }
  std::map<std::string, std::string> withheld;
  for (const Withheld& each : withheld_) {
    for (const HeldGpu& gpu : each.gpus.FindHeld()) {
      withheld[gpu.uuid] = absl::StrCat("withheld after ", each.holder, ": ", gpu.text);
    }
  }
  for (const v1::Gpu& gpu : inventory.gpus()) {
    const auto of = gpus_.find(gpu.uuid());
    if (of != gpus_.end() && of->second != session) {
      withheld[gpu.uuid()] = absl::StrCat("held by ", holdings_.at(of->second).holder);
    }
  }
  for (const auto& [other, holding] : holdings_) {
    if (other == session || holding.share.cores.empty()) continue;
    v1::HeldCores& cores = *inventory.add_held_cores();
    cores.set_cpulist(Format(holding.share.cores));
    cores.set_holder(holding.holder);
  }
  for (v1::Gpu& gpu : *inventory.mutable_gpus()) {
    if (auto why = withheld.find(gpu.uuid()); why != withheld.end()) gpu.set_withheld(why->second);
  }
}

}  // namespace dtrain::session
