// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>

#include "dtrain/v1/job.pb.h"
#include "dtrain/v1/shepherd.pb.h"

namespace dtrain::shepherd {

// What the agent is told of the job here. Pure.
class JobReport {
 public:
  // The start has come.
  void Begin(const v1::JobPart& part);
  void OnStarted(const v1::Started& started);
  void OnExit(const v1::WorkerExit& exit);
  void OnProgress(const v1::RankProgress& progress);
  void OnSize(uint32_t rank, v1::StreamKind stream, uint64_t bytes);
  void SetEnding();
  void SetUnkillable();

  const v1::Report& report() const { return report_; }
  // It differs from what was last taken for told.
  bool changed() const { return changed_; }
  void SetTold() { changed_ = false; }

 private:
  v1::RankOnNode* Find(uint32_t rank);

  v1::Report report_;
  std::map<uint32_t, int> places_;  // of the ranks in it
  bool changed_ = false;
};

}  // namespace dtrain::shepherd
