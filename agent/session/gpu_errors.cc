// SPDX-License-Identifier: Apache-2.0
#include "agent/session/gpu_errors.h"

#include <algorithm>
#include <utility>

namespace dtrain::session {

void GpuErrors::Before(const std::vector<v1::Gpu>& gpus) {
  before_.clear();
  indices_.clear();
  for (const v1::Gpu& gpu : gpus) {
    indices_[gpu.uuid()] = gpu.index();
    if (gpu.has_uncorrected_ecc_errors()) before_[gpu.uuid()] = gpu.uncorrected_ecc_errors();
  }
}

std::vector<std::string> GpuErrors::Known(const std::set<std::string>& uuids) const {
  std::vector<std::string> known;
  for (const std::string& uuid : uuids) {
    if (indices_.count(uuid) > 0) known.push_back(uuid);
  }
  return known;
}

bool GpuErrors::OnStates(const v1::GpuStates& states) {
  bool is_new = false;
  states_.set_unix_nanos(states.unix_nanos());
  for (const v1::GpuState& now : states.gpus()) {
    v1::GpuState& state = At(now.uuid(), now.index());
    v1::GpuState next = now;
    // What a watch before this one has heard counts, too.
    *next.mutable_xids() = state.xids();
    for (const uint32_t xid : now.xids()) {
      if (std::find(next.xids().begin(), next.xids().end(), xid) != next.xids().end()) continue;
      next.add_xids(xid);
      is_new = true;
    }
    next.set_uncorrected_ecc_errors(state.uncorrected_ecc_errors());
    is_new |= Count(next, now.uncorrected_ecc_errors());
    is_new |= state.fault().empty() && !next.fault().empty();
    if (!state.fault().empty()) next.set_fault(state.fault());
    state = std::move(next);
  }
  return is_new;
}

bool GpuErrors::OnLook(const std::vector<v1::Gpu>& gpus, const std::set<std::string>& uuids) {
  bool is_new = false;
  for (const v1::Gpu& gpu : gpus) {
    if (uuids.count(gpu.uuid()) == 0 || indices_.count(gpu.uuid()) == 0) continue;
    const bool has = gpu.has_uncorrected_ecc_errors();
    if (!has && gpu.fault().empty()) continue;
    v1::GpuState& state = At(gpu.uuid(), gpu.index());
    if (has) is_new |= Count(state, gpu.uncorrected_ecc_errors());
    if (!state.fault().empty() || gpu.fault().empty()) continue;
    state.set_fault(gpu.fault());
    is_new = true;
  }
  return is_new;
}

// Of the first: nothing is known of one more than of the others.
bool GpuErrors::OnHang(const std::set<std::string>& uuids) {
  const std::vector<std::string> known = Known(uuids);
  if (known.empty()) return false;
  v1::GpuState* hung = states_.gpus_size() > 0 ? states_.mutable_gpus(0) : nullptr;
  if (hung == nullptr) hung = &At(known[0], indices_[known[0]]);
  if (!hung->fault().empty()) return false;
  hung->set_fault("NVIDIA's driver (NVML) does not answer, nor for the node's other GPUs");
  return true;
}

bool GpuErrors::any() const {
  return std::any_of(states_.gpus().begin(), states_.gpus().end(), [](const v1::GpuState& state) {
    return state.xids_size() > 0 || state.uncorrected_ecc_errors() > 0 || !state.fault().empty();
  });
}

v1::GpuState& GpuErrors::At(const std::string& uuid, uint32_t index) {
  for (v1::GpuState& state : *states_.mutable_gpus()) {
    if (state.uuid() == uuid) return state;
  }
  v1::GpuState& state = *states_.add_gpus();
  state.set_uuid(uuid);
  state.set_index(index);
  return state;
}

// A driver that was loaded again counts from zero.
bool GpuErrors::Count(v1::GpuState& state, uint64_t errors) {
  const uint64_t before = before_.try_emplace(state.uuid(), errors).first->second;
  if (errors < before || errors - before <= state.uncorrected_ecc_errors()) return false;
  state.set_uncorrected_ecc_errors(errors - before);
  return true;
}

}  // namespace dtrain::session
