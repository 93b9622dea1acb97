// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/gpu_watch.h"

#include "absl/strings/str_cat.h"
#include "common/base/text.h"
#include "launcher/job/xid.h"

namespace dtrain::job {
namespace {

// Of what a node may say: more than a machine has, and than anybody reads.
constexpr size_t kMostGpus = 10'000;
constexpr size_t kMostFaults = 1000;
constexpr size_t kMostXids = 64;  // numbers, of one GPU
constexpr size_t kMostOfFault = 200;

std::string XidText(uint32_t number) {
  const absl::string_view meaning = XidMeaning(number);
  return absl::StrCat("reported Xid ", number, meaning.empty() ? "" : " (", meaning,
                      meaning.empty() ? "" : ")");
}

std::string EccText(uint64_t errors) {
  return absl::StrCat("had ", errors, " uncorrected ECC error", errors == 1 ? "" : "s");
}

}  // namespace

void GpuWatch::OnStates(const Event& event) {
  const AgentMessage& message = OfAgent(event);
  for (const v1::GpuState& state : message.event.gpus().gpus()) OnState(message.node, state);
}

void GpuWatch::OnState(NodeId node, const v1::GpuState& state) {
  if (state.xids_size() == 0 && state.uncorrected_ecc_errors() == 0 && state.fault().empty()) {
    return;
  }
  const std::pair key(node.value(), state.uuid());
  if (known_.size() >= kMostGpus && known_.count(key) == 0) return;
  Known& known = known_[key];
  const bool stopping = cluster_.state() == State::kStopping;
  for (const uint32_t number : state.xids()) {
    if (known.xids.size() >= kMostXids || !known.xids.emplace(number, true).second) continue;
    const XidKind kind = KindOfXid(number);
    // A program that is killed leaves such ones behind.
    if (stopping && kind == XidKind::kProgram) continue;
    Add({node, state.index(), XidText(number), kind});
  }
  if (const uint64_t errors = state.uncorrected_ecc_errors(); errors > 0) {
    if (known.ecc == 0) {
      Add({node, state.index(), EccText(errors), XidKind::kHardware});
      known.ecc = faults_.size();
    } else if (known.ecc <= faults_.size()) {
      faults_[known.ecc - 1].what = EccText(errors);
    }
  }
  if (!state.fault().empty() && !known.fault) {
    known.fault = true;
    Add({node, state.index(),
         absl::StrCat("cannot be used any more: ", Escape(state.fault(), kMostOfFault)),
         XidKind::kHardware});
  }
}

void GpuWatch::Add(GpuFault fault) {
  if (faults_.size() >= kMostFaults) return;
  out_.Warn(absl::StrCat(cluster_.host(fault.node), ": ", NameOf(fault)));
  faults_.push_back(std::move(fault));
}

std::string NameOf(const GpuFault& fault) {
  return absl::StrCat("GPU ", fault.gpu, " ", fault.what);
}

v1::GpuStates ErrorsOf(const v1::GpuStates& states) {
  v1::GpuStates errors;
  for (const v1::GpuState& state : states.gpus()) {
    if (state.xids_size() == 0 && state.uncorrected_ecc_errors() == 0 && state.fault().empty()) {
      continue;
    }
    v1::GpuState& kept = *errors.add_gpus();
    kept.set_uuid(state.uuid());
    kept.set_index(state.index());
    *kept.mutable_xids() = state.xids();
    kept.set_uncorrected_ecc_errors(state.uncorrected_ecc_errors());
    kept.set_fault(state.fault());
  }
  return errors;
}

}  // namespace dtrain::job
