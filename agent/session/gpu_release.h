// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/v1/node.pb.h"
#include "dtrain/v1/state.pb.h"

namespace dtrain::session {

// A GPU that a job was given and that is not free after its end.
struct HeldGpu {
  std::string uuid;
  std::string text;   // what holds how much of which GPU, and what to do; no host name
  bool ours = false;  // one of the job's own processes holds it, alive or dead
};

// Tells whether the GPUs of one job on this node are free after it, by a look before and looks
// after. What other people's processes use does not count, also when it has grown. Pure.
class GpuRelease {
 public:
  GpuRelease() = default;
  // What another agent has seen. Its `holder` is the caller's.
  explicit GpuRelease(const v1::GpuUse& use);
  v1::GpuUse Save() const;

  void Before(const std::vector<v1::Gpu>& gpus);
  // Which the job has; those it was said to have before do not count.
  void Given(std::set<std::string> uuids) { uuids_ = std::move(uuids); }
  void Started(const std::set<uint32_t>& workers);  // their pids
  // `living`: pids of the job's processes that are still there.
  void After(const std::vector<v1::Gpu>& gpus, const std::vector<uint32_t>& living);

  // Later: those that were living count as the job's for as long as the GPU has them.
  void Again(const std::vector<v1::Gpu>& gpus) { after_ = gpus; }

  // The job was given GPUs of which we know how they were.
  bool watched() const;
  bool seen_after() const { return seen_after_; }
  bool held() const { return !FindHeld().empty(); }
  std::vector<HeldGpu> FindHeld() const;

 private:
  bool IsOurs(const v1::GpuProcess& process, const v1::Gpu& before) const;
  std::vector<v1::Gpu> before_, after_;
  std::set<std::string> uuids_;
  std::set<uint32_t> workers_;  // pids
  std::set<uint32_t> living_;
  bool seen_after_ = false;
};

}  // namespace dtrain::session
