// SPDX-License-Identifier: Apache-2.0
#include "agent/session/reservations.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/cpulist.h"
#include "common/base/text.h"

namespace dtrain::session {
namespace {

absl::Status AddCores(const std::string& cpulist, std::set<int>& cores) {
  const auto cpus = ParseCpuList(cpulist);
  if (!cpus.ok()) return cpus.status();
  cores.insert(cpus->begin(), cpus->end());
  return absl::OkStatus();
}

template <typename T>
std::vector<T> Both(const std::set<T>& a, const std::set<T>& b) {
  std::vector<T> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both;
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
  std::vector<std::string> held;
  for (const auto& [other, holding] : holdings_) {
    if (other == session) continue;
    if (const auto gpus = Both(share.gpus, holding.share.gpus); !gpus.empty()) {
      held.push_back(absl::StrCat(Count(gpus.size(), "GPU"), " (", Escape(gpus.front(), 64),
                                  gpus.size() > 1 ? ", ..." : "", ") by ", holding.holder));
    }
    if (const auto cores = Both(share.cores, holding.share.cores); !cores.empty()) {
      held.push_back(absl::StrCat("cores ", FormatCpuList(cores), " by ", holding.holder));
    }
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
  if (share.gpus.empty() && share.cores.empty()) {
    holdings_.erase(session);
  } else {
    holdings_[session] = {holder, std::move(share)};
  }
  return absl::OkStatus();
}

void Reservations::Release(Key session) { holdings_.erase(session); }

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
  for (const auto& [other, holding] : holdings_) {
    if (other == session) continue;
    for (const v1::Gpu& gpu : inventory.gpus()) {
      if (holding.share.gpus.contains(gpu.uuid())) {
        withheld[gpu.uuid()] = absl::StrCat("held by ", holding.holder);
      }
    }
    if (holding.share.cores.empty()) continue;
    v1::HeldCores& cores = *inventory.add_held_cores();
    cores.set_cpulist(Format(holding.share.cores));
    cores.set_holder(holding.holder);
  }
  for (v1::Gpu& gpu : *inventory.mutable_gpus()) {
    if (auto why = withheld.find(gpu.uuid()); why != withheld.end()) gpu.set_withheld(why->second);
  }
}

}  // namespace dtrain::session
