// SPDX-License-Identifier: Apache-2.0
#include "agent/session/visitors.h"

#include <chrono>
#include <utility>

#include "common/rpc/bounded_message.h"

namespace dtrain::session {
namespace {

// Our launchers say Hello as soon as they are connected.
constexpr Duration kVisitTimeout = std::chrono::seconds(30);

}  // namespace

void Visitors::Accept(std::shared_ptr<Stream> stream, const auth::Identity& peer,
                      std::optional<spawn::Connected> connected) {
  auto visitor = visitors_.insert(visitors_.end(), {stream, std::make_unique<loop::Timer>(loop_)});
  visitor->timeout->After(kVisitTimeout, [this, visitor] {
    Dismiss(visitor, absl::DeadlineExceededError("no Hello within 30 s"));
  });
  link::CarrierHandlers handlers;
  handlers.on_closed = [this, visitor](const absl::Status&) {
    Dismiss(visitor, absl::CancelledError("the launcher is gone"));
  };
  stream->Listen(std::move(handlers));
  stream->Start(
      [this, visitor, peer, connected = std::move(connected)](grpc::ByteBuffer& first) mutable {
        OnFirst(visitor, peer, std::move(connected), first);
      });
}

// Its stream is nobody's from now on.
std::shared_ptr<Visitors::Stream> Visitors::Release(List::iterator visitor) {
  std::shared_ptr<Stream> stream = std::move(visitor->stream);
  stream->Listen({});
  visitors_.erase(visitor);
  return stream;
}

void Visitors::Dismiss(List::iterator visitor, absl::Status why) {
  std::shared_ptr<Stream> stream = Release(visitor);
  stream->Finish(std::move(why));
  stream->WhenOver([this] { on_gone_(); });
}

void Visitors::OnFirst(List::iterator visitor, const auth::Identity& peer,
                       std::optional<spawn::Connected> connected, grpc::ByteBuffer& first) {
  v1::SessionRequest request;
  absl::Status parsed = rpc::Parse(first, rpc::kMostQuestion, &request);
  if (parsed.ok() && !request.has_hello()) {
    parsed = absl::FailedPreconditionError("the first message of a session must be a Hello");
  }
  if (!parsed.ok()) return Dismiss(visitor, std::move(parsed));
  std::shared_ptr<Stream> stream = Release(visitor);
  on_hello_(std::move(stream), peer, std::move(connected), request.hello());
}

}  // namespace dtrain::session
