// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/channel.h"

#include <grpc/grpc.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/server_posix.h>

#include <chrono>
#include <string>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "common/base/check.h"
#include "common/os/fd.h"
#include "common/rpc/bounded_message.h"
#include "common/rpc/frame_guard.h"
#include "common/rpc/tsan.h"

namespace dtrain::rpc {
namespace {

constexpr int kMostFromServer = static_cast<int>(kMostToClient);
constexpr int kMostToServer = static_cast<int>(kMostMessage);
// A peer without a call has nothing to say: whoever only holds a connection loses it.
constexpr int kIdleMs = 30'000;
// Of one user: some of the longest messages, of which at most one is on its way.
constexpr size_t kMostOfUser = 128 << 20;

}  // namespace

// absl as Debian builds it looks for deadlocks at every lock of gRPC's, with a graph of all locks.
Library::Library() {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  grpc_init();
}

Library::~Library() { grpc_shutdown(); }

std::shared_ptr<grpc::Channel> MakeChannel(os::UniqueFd stream) {
  DTRAIN_CHECK(os::SetNonBlocking(stream.get(), true).ok());
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(kMostFromServer);
  args.SetMaxSendMessageSize(kMostToServer);
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomInsecureChannelFromFd("dtrain-agent", stream.Release(), args);
}

Quota::Quota() : quota_("user") { quota_.Resize(kMostOfUser); }

StreamServer::StreamServer(grpc::Service& service, os::UniqueFd stream, const Quota* quota) {
  DTRAIN_CHECK(os::SetNonBlocking(stream.get(), true).ok());
  grpc::ServerBuilder builder;
  builder.RegisterService(&service);
  builder.SetMaxReceiveMessageSize(kMostToServer);
  builder.SetMaxSendMessageSize(kMostFromServer);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMostCalls);
  if (quota != nullptr) builder.SetResourceQuota(quota->get());
  server_ = builder.BuildAndStart();
  DTRAIN_CHECK(server_ != nullptr);
  grpc::AddInsecureChannelFromFd(server_.get(), stream.Release());
}

StreamServer::~StreamServer() {
  // Calls still open are cancelled at once: who destroys the server has said all it had to say.
  server_->Shutdown(std::chrono::system_clock::now());
  CallbacksHaveEnded();
}

absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

}  // namespace dtrain::rpc
