// SPDX-License-Identifier: Apache-2.0
#include "agent/answers/spool_feed.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace dtrain::answers {
namespace {

constexpr char kRoute[] = "GET /v1/jobs/{id}/ranks/{rank}/log";

}  // namespace

std::string SpoolFeed::Next(size_t limit) {
  if (ended_) return "";
  request_.set_limit(static_cast<uint32_t>(limit));
  auto piece = sessions_.ReadLog(peer_, kRoute, request_);
  if (!piece.ok()) {
    ended_ = true;  // the job is over, and its output gone
    return "";
  }
  const uint64_t missed = piece->offset() - std::min(piece->offset(), request_.offset());
  request_.set_offset(piece->offset() + piece->data().size());
  ended_ = piece->ended() && request_.offset() >= piece->size();
  std::string data = std::move(*piece->mutable_data());
  if (std::exchange(begun_, true) && missed > 0) {
    data = absl::StrCat("[dtrain: ", missed, " bytes are no longer available]\n", data);
  }
  return data;
}

void SpoolFeed::Notify(absl::AnyInvocable<void()> task) {
  wake_ = std::make_shared<loop::Task>(std::move(task));
  sessions_.WhenLogsGrow(request_.job_id(), request_.attempt(), wake_);
}

}  // namespace dtrain::answers
