// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "dtrain/v1/node.pb.h"

namespace dtrain::session {

// What the GPUs of one job have reported since before its start. Pure.
class GpuErrors {
 public:
  // How they were then: what they had counted is not the job's.
  void Before(const std::vector<v1::Gpu>& gpus);
  // Those of `uuids` that are known from before.
  std::vector<std::string> Known(const std::set<std::string>& uuids) const;
  // As their watch tells. Whether there is an error that was not there the last time.
  bool OnStates(const v1::GpuStates& states);
  // As a look after the job's end shows those of `uuids`. Likewise.
  bool OnLook(const std::vector<v1::Gpu>& gpus, const std::set<std::string>& uuids);
  // The driver does not answer, of any of `uuids`. Likewise.
  bool OnHang(const std::set<std::string>& uuids);

  // As they are now; counts are those since before.
  const v1::GpuStates& states() const { return states_; }
  bool any() const;

 private:
  v1::GpuState& At(const std::string& uuid, uint32_t index);
  bool Count(v1::GpuState& state, uint64_t errors);

  std::map<std::string, uint64_t> before_;   // by uuid: ECC errors
  std::map<std::string, uint32_t> indices_;  // of those that were there before
  v1::GpuStates states_;
};

}  // namespace dtrain::session
