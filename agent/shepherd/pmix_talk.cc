// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/pmix_talk.h"

#include <utility>

namespace dtrain::shepherd {

std::optional<v1::PmixUp> PmixTalk::OnUp(v1::PmixUp up) {
  switch (up.kind_case()) {
    case v1::PmixUp::kAsk:
      asks_ = true;
      break;
    case v1::PmixUp::kFence:
      fences_[{up.fence().ranks().begin(), up.fence().ranks().end()}] = up;
      break;
    case v1::PmixUp::kWanted:
      wanted_[up.wanted().id()] = up;
      break;
    case v1::PmixUp::kFound: {
      const auto question = questions_.find(up.found().id());
      if (question == questions_.end()) return std::nullopt;
      up.mutable_found()->set_id(question->second);
      questions_.erase(question);
      break;
    }
    case v1::PmixUp::kJoined:
      for (const uint32_t rank : up.joined().ranks()) {
        joined_.insert(rank);
        left_.erase(rank);
      }
      break;
    case v1::PmixUp::kLeft:
      left_.insert(up.left().ranks().begin(), up.left().ranks().end());
      break;
    case v1::PmixUp::KIND_NOT_SET:
      break;
  }
  return up;
}

v1::PmixDown PmixTalk::OnDown(v1::PmixDown down) {
  switch (down.kind_case()) {
    case v1::PmixDown::kJob:
      asks_ = false;
      break;
    case v1::PmixDown::kFenceDone:
      fences_.erase({down.fence_done().ranks().begin(), down.fence_done().ranks().end()});
      break;
    case v1::PmixDown::kFound:
      wanted_.erase(down.found().id());
      break;
    case v1::PmixDown::kWanted:
      questions_[++last_question_] = down.wanted().id();
      down.mutable_wanted()->set_id(last_question_);
      break;
    case v1::PmixDown::KIND_NOT_SET:
      break;
  }
  return down;
}

std::vector<v1::PmixUp> PmixTalk::OnAnother() {
  questions_.clear();
  std::vector<v1::PmixUp> again;
  if (!joined_.empty()) {
    *again.emplace_back().mutable_joined()->mutable_ranks() = {joined_.begin(), joined_.end()};
  }
  if (asks_) again.emplace_back().mutable_ask();
  for (const auto& [ranks, fence] : fences_) again.push_back(fence);
  for (const auto& [id, wanted] : wanted_) again.push_back(wanted);
  if (!left_.empty()) {
    *again.emplace_back().mutable_left()->mutable_ranks() = {left_.begin(), left_.end()};
  }
  return again;
}

v1::WorkerExit::World PmixTalk::WorldOf(uint32_t rank) const {
  if (left_.contains(rank)) return v1::WorkerExit::WORLD_LEFT;
  return joined_.contains(rank) ? v1::WorkerExit::WORLD_INSIDE : v1::WorkerExit::WORLD_UNSPECIFIED;
}

}  // namespace dtrain::shepherd
