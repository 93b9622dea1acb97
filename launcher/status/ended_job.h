// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/http/message.h"
#include "common/view/columns.h"
#include "common/view/event_log.h"
#include "common/view/rank_view.h"
#include "launcher/detached/job_folder.h"

namespace dtrain::status {

// A detached job that has ended, as its launcher would answer the page's questions now: the end and
// the report, the ranks and the output of the last attempt. Calls may block.
class EndedJob {
 public:
  // FAILED_PRECONDITION: it has not ended.
  static absl::StatusOr<std::unique_ptr<EndedJob>> Read(const detached::JobFolder& folder);

  const std::string& id() const { return id_; }
  http::Response Answer(const http::Target& target) const;

 private:
  // A rank of the last attempt.
  struct KeptRank {
    uint32_t rank = 0;
    std::string host;
    uint32_t pid = 0;
    bool ended = false;
    v1::WorkerExit exit;
    double seconds = 0;  // that it ran

    view::RankFacts facts() const {
      return {.rank = rank,
              .host = host,
              .pid = pid,
              .lost = !ended,
              .ended = ended,
              .exit = ended ? &exit : nullptr};
    }
  };

  EndedJob(const detached::JobFolder& folder, const nlohmann::ordered_json& story,
           const nlohmann::ordered_json& summary);
  void TakeRanks(const nlohmann::ordered_json& summary);
  void TakeEvents(const nlohmann::ordered_json& story, const nlohmann::ordered_json& summary);

  nlohmann::ordered_json AllColumns(uint64_t since) const;
  nlohmann::ordered_json RankView(uint32_t rank) const;
  http::Response AnswerRank(const std::vector<std::string>& parts,
                            const http::Target& target) const;
  http::Response AnswerLog(uint32_t rank, const http::Target& target) const;
  http::Response AnswerEvents(const http::Target& target) const;

  const std::string id_;
  std::string logs_;  // the folder with the output of the last attempt
  double seconds_ = 0;
  nlohmann::ordered_json view_;
  std::vector<KeptRank> ranks_;
  view::Columns columns_;
  view::EventLog events_;
};

}  // namespace dtrain::status
