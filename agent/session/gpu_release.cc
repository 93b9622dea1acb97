// SPDX-License-Identifier: Apache-2.0
#include "agent/session/gpu_release.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/text.h"

namespace dtrain::session {
namespace {

// A driver's own use of a GPU changes by some MiB; the context of a process takes hundreds.
constexpr int64_t kMargin = int64_t{256} << 20;
constexpr size_t kMostPids = 1 << 16;

const v1::Gpu* Find(const std::vector<v1::Gpu>& gpus, const std::string& uuid) {
  for (const v1::Gpu& gpu : gpus) {
    if (gpu.uuid() == uuid) return &gpu;
  }
  return nullptr;
}

bool Has(const v1::Gpu& gpu, uint32_t pid) {
  return std::any_of(gpu.processes().begin(), gpu.processes().end(),
                     [pid](const auto& process) { return process.pid() == pid; });
}

// Memory in use without a process to whom it belongs; empty when that cannot be told.
std::optional<int64_t> Ownerless(const v1::Gpu& gpu) {
  auto left = static_cast<int64_t>(gpu.memory_used_bytes());
  for (const v1::GpuProcess& process : gpu.processes()) {
    if (process.memory_bytes() == 0) return std::nullopt;
    left -= static_cast<int64_t>(process.memory_bytes());
  }
  return left;
}

std::string Name(const v1::Gpu& gpu) {
  return absl::StrCat("GPU ", gpu.index(), " (", Escape(gpu.uuid(), 64), ")");
}

std::string MiB(uint64_t bytes) { return absl::StrCat(bytes >> 20, " MiB"); }

std::string Reset(const v1::Gpu& gpu) {
  return absl::StrCat(
      "start no job there before it is free: see nvidia-smi, and reset it "
      "(nvidia-smi --gpu-reset -i ",
      gpu.index(), ") or reboot the node");
}

}  // namespace

GpuRelease::GpuRelease(const v1::GpuUse& use)
    : before_(use.before().begin(), use.before().end()),
      after_(use.after().begin(), use.after().end()),
      uuids_(use.uuids().begin(), use.uuids().end()),
      workers_(use.workers().begin(), use.workers().end()),
      living_(use.living().begin(), use.living().end()),
      seen_after_(use.after_size() > 0) {}

v1::GpuUse GpuRelease::Save() const {
  v1::GpuUse out;
  out.mutable_uuids()->Add(uuids_.begin(), uuids_.end());
  for (const std::string& uuid : uuids_) {
    if (const v1::Gpu* gpu = Find(before_, uuid); gpu != nullptr) *out.add_before() = *gpu;
    if (const v1::Gpu* gpu = Find(after_, uuid); gpu != nullptr) *out.add_after() = *gpu;
  }
  out.mutable_workers()->Add(workers_.begin(), workers_.end());
  out.mutable_living()->Add(living_.begin(), living_.end());
  return out;
}

void GpuRelease::Before(const std::vector<v1::Gpu>& gpus) { before_ = gpus; }

void GpuRelease::Started(const std::set<uint32_t>& workers) {
  if (workers_.size() > kMostPids) return;  // no job of ours has so many
  workers_.insert(workers.begin(), workers.end());
}

void GpuRelease::After(const std::vector<v1::Gpu>& gpus, const std::vector<uint32_t>& living) {
  after_ = gpus;
  living_ = std::set<uint32_t>(living.begin(), living.end());
  seen_after_ = true;
}

bool GpuRelease::watched() const {
  return std::any_of(before_.begin(), before_.end(),
                     [this](const v1::Gpu& gpu) { return uuids_.count(gpu.uuid()) > 0; });
}

bool GpuRelease::IsOurs(const v1::GpuProcess& process, const v1::Gpu& before) const {
  if (living_.count(process.pid()) > 0) return true;
  // A worker's pid whose process is gone, but not for the driver. One that has a name is another
  // process by now, and in a container pids may be those of the host.
  return workers_.count(process.pid()) > 0 && process.name().empty() && !Has(before, process.pid());
}

std::vector<HeldGpu> GpuRelease::FindHeld() const {
  std::vector<HeldGpu> out;
  for (const std::string& uuid : uuids_) {
    const v1::Gpu* before = Find(before_, uuid);
    const v1::Gpu* after = Find(after_, uuid);
    if (before == nullptr || after == nullptr) continue;
    std::vector<std::string> ours;
    uint64_t bytes = 0;
    for (const v1::GpuProcess& process : after->processes()) {
      if (!IsOurs(process, *before)) continue;
      const bool lives = living_.count(process.pid()) > 0;
      ours.push_back(absl::StrCat("pid ", process.pid(), lives ? "" : ", which has ended"));
      bytes += process.memory_bytes();
    }
    if (!ours.empty()) {
      std::string text = absl::StrCat(
          Name(*after), " is still held by this job after its end: ", MiB(bytes), " by ");
      for (size_t i = 0; i < ours.size(); ++i) absl::StrAppend(&text, i > 0 ? "; " : "", ours[i]);
      out.push_back({uuid, absl::StrCat(text, "; ", Reset(*after)), true});
      continue;
    }
    const auto was = Ownerless(*before), is = Ownerless(*after);
    if (!was || !is || *is - std::max<int64_t>(*was, 0) < kMargin) continue;
    out.push_back(
        {uuid,
         absl::StrCat(Name(*after), " is not free after the job's end: ",
                      MiB(static_cast<uint64_t>(*is - std::max<int64_t>(*was, 0))),
                      " more are in use than before it, by no visible process; ", Reset(*after)),
         false});
  }
  return out;
}

}  // namespace dtrain::session
