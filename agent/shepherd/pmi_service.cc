// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/pmi_service.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"

namespace dtrain::shepherd {
namespace {

// The one that this node is in, and the one before: another node may not have left that yet, and
// what it gets then is what all have said on entering it.
constexpr size_t kFencesKept = 2;

}  // namespace

void PmiService::Serve(const v1::JobPart& part) {
  server_.emplace(part);
  for (const auto& worker : workers_.all()) {
    const uint32_t rank = worker->rank();
    connections_[rank] = std::make_unique<PmiConnection>(loop_, worker->TakePmiSocket(),
                                                         [this, rank](absl::string_view message) {
                                                           Carry(server_->OnMessage(rank, message));
                                                           return server_->SpeaksFrames(rank);
                                                         });
  }
}

void PmiService::OnFenceRelease(const v1::FenceRelease& release) {
  if (server_) Carry(server_->OnFenceRelease(release));
}

void PmiService::SayAgain() {
  for (const v1::JobEvent& entered : entered_) launcher_.Send(entered);
}

void PmiService::HearLast(uint32_t rank) {
  const auto connection = connections_.find(rank);
  if (connection == connections_.end()) return;
  connection->second->ReadRest();
  connection->second->Close();
}

void PmiService::OnGone(uint32_t rank) {
  if (server_) Carry(server_->OnGone(rank));
}

void PmiService::Carry(PmiServer::Actions actions) {
  for (PmiServer::Action& action : actions) {
    if (auto* reply = std::get_if<PmiServer::Reply>(&action)) {
      connections_[reply->rank]->Send(reply->message);
    } else if (auto* drop = std::get_if<PmiServer::Drop>(&action)) {
      connections_[drop->rank]->Close();
      launcher_.Warn(
          absl::StrCat("rank ", drop->rank, " was cut off from PMI (PMI_FD): it sent ", drop->why));
    } else if (auto* abort = std::get_if<PmiServer::Abort>(&action)) {
      aborts_.Ask(abort->rank, abort->code);
    } else {
      v1::JobEvent& event = entered_.emplace_back();
      *event.mutable_fence_enter() = std::get<v1::FenceEnter>(std::move(action));
      if (entered_.size() > kFencesKept) entered_.pop_front();
      launcher_.Send(event);
    }
  }
}

}  // namespace dtrain::shepherd
