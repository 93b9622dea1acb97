// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/pmi_service.h"

#include <sys/socket.h>

#include <cerrno>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "agent/shepherd/pmi2_requests.h"
#include "agent/shepherd/pmi_line.h"
#include "common/base/check.h"
#include "common/os/fd.h"

namespace dtrain::shepherd {

PmiServer::PmiServer(const v1::JobPart& part) : group_(part), lines_(group_), frames_(group_) {}

PmiServer::Actions PmiServer::OnMessage(uint32_t rank, absl::string_view message) {
  const auto it = group_.clients().find(rank);
  DTRAIN_CHECK(it != group_.clients().end());  // connections are made from the same part
  PmiClient& client = it->second;
  if (client.gone || client.dropped) return {};
  return client.frames ? frames_.OnFrame(rank, client, message)
                       : lines_.OnLine(rank, client, message);
}

namespace {

// A client that sends without reading its answers is not read from while this much waits.
constexpr size_t kOutMax = 64 << 10;
constexpr size_t kReadSize = 4096;

}  // namespace

PmiConnection::PmiConnection(loop::Loop& loop, os::UniqueFd socket, OnMessage on_message)
    : loop_(loop), socket_(std::move(socket)), on_message_(std::move(on_message)) {
  DTRAIN_CHECK(os::SetNonBlocking(socket_.get(), true).ok());
  watch_ = std::make_unique<loop::FdWatch>(loop_, socket_.get());
  Arm();
}

void PmiConnection::Arm() {
  if (!socket_ || reading_ || out_.size() > kOutMax) return;
  reading_ = true;
  watch_->OnReadable([this] {
    reading_ = false;
    Read();
    Arm();
  });
}

void PmiConnection::ReadRest() {
  // Bounded: a process it left behind may hold the socket and go on sending.
  for (size_t i = 0; i < kOutMax / kReadSize && socket_ && Read(); ++i) {
  }
}

bool PmiConnection::Read() {
  char buffer[kReadSize];
  ssize_t n = recv(socket_.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
  if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
    Close();
    return false;
  }
  if (n < 0) return false;
  in_.append(buffer, static_cast<size_t>(n));
  taking_ = true;  // the answers to all messages that are here go out together
  while (socket_) {
    auto message = Next();
    if (!message) break;
    frames_ = on_message_(*message);
  }
  taking_ = false;
  if (!writing_) Write();
  return true;
}

std::optional<std::string> PmiConnection::Next() {
  const size_t size = frames_ ? Pmi2FrameSize(in_) : PmiLineSize(in_);
  if (size == 0) return std::nullopt;
  std::string message = in_.substr(0, size);
  in_.erase(0, size);
  if (!frames_ && message.back() == '\n') message.pop_back();
  return message;
}

void PmiConnection::Send(absl::string_view message) {
  if (!socket_) return;
  out_.append(message.data(), message.size());
  if (!writing_ && !taking_) Write();
}

void PmiConnection::Write() {
  writing_ = false;
  while (socket_ && !out_.empty()) {
    ssize_t n = send(socket_.get(), out_.data(), out_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0) {
      out_.erase(0, static_cast<size_t>(n));
    } else if (n < 0 && errno == EAGAIN) {
      writing_ = true;
      watch_->OnWritable([this] { Write(); });
      return;
    } else if (n < 0 && errno != EINTR) {
      return Close();  // the worker has closed its end
    }
  }
  Arm();
}

void PmiConnection::Close() {
  watch_.reset();
  socket_.Reset();
  out_.clear();
}

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
