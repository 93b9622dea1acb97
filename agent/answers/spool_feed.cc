// SPDX-License-Identifier: Apache-2.0
#include "agent/answers/spool_feed.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace dtrain::answers {

absl::StatusOr<std::unique_ptr<SpoolFeed>> SpoolFeed::Open(session::Inquiries& inquiries,
                                                           const auth::Identity& peer,
                                                           absl::string_view route,
                                                           const v1::ReadLogRequest& request) {
  std::unique_ptr<SpoolFeed> feed(new SpoolFeed);
  session::LogSource::Handlers handlers;
  handlers.on_piece = [raw = feed.get()](const v1::LogPosition& at, link::SharedBytes data) {
    raw->OnPiece(at.offset(), std::move(data));
  };
  handlers.on_over = [raw = feed.get()](const absl::StatusOr<v1::LogsEnd>&) {
    raw->over_ = true;
    raw->Wake();
  };
  auto source = inquiries.FollowLog(peer, route, request, std::move(handlers));
  if (!source.ok()) return source.status();
  feed->source_ = *std::move(source);
  feed->source_->Next();
  return feed;
}

void SpoolFeed::OnPiece(uint64_t offset, link::SharedBytes data) {
  if (std::exchange(begun_, true)) missed_ = offset - std::min(offset, next_);
  next_ = offset + data.size();
  data_ = std::move(data);
  Wake();
}

std::string SpoolFeed::Next(size_t limit) {
  if (data_.size() == 0) return "";
  std::string out;
  if (const uint64_t missed = std::exchange(missed_, 0); missed > 0) {
    out = absl::StrCat("[dtrain: ", missed, " bytes are no longer available]\n");
  }
  const link::SharedBytes part = data_.Sub(0, limit);
  out.append(part.view().data(), part.size());
  data_ = data_.Sub(part.size(), data_.size());
  if (data_.size() == 0) {
    data_ = {};
    source_->Next();
  }
  return out;
}

// It holds the connection, which may let go of this.
void SpoolFeed::Wake() {
  if (wake_ != nullptr) std::exchange(wake_, nullptr)();
}

}  // namespace dtrain::answers
