// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <list>
#include <memory>
#include <optional>

#include "absl/functional/any_invocable.h"
#include "agent/auth/identity.h"
#include "agent/session/launcher_stream.h"
#include "agent/spawn/spawner.h"
#include "common/loop/loop.h"

namespace dtrain::session {

// Streams that have not said Hello yet. Loop thread.
class Visitors {
 public:
  using Stream = LauncherStream::Stream;
  // One has: its stream is nobody's from now on.
  using OnHello =
      absl::AnyInvocable<void(std::shared_ptr<Stream> stream, const auth::Identity& peer,
                              std::optional<spawn::Connected> connected, const v1::Hello& hello)>;
  // `on_gone`: one has not, and its call is over.
  Visitors(loop::Loop& loop, OnHello on_hello, loop::Task on_gone)
      : loop_(loop), on_hello_(std::move(on_hello)), on_gone_(std::move(on_gone)) {}

  void Accept(std::shared_ptr<Stream> stream, const auth::Identity& peer,
              std::optional<spawn::Connected> connected);
  bool empty() const { return visitors_.empty(); }

 private:
  struct Visitor {
    std::shared_ptr<Stream> stream;
    std::unique_ptr<loop::Timer> timeout;
  };
  using List = std::list<Visitor>;

  std::shared_ptr<Stream> Release(List::iterator visitor);
  void Dismiss(List::iterator visitor, absl::Status why);
  void OnFirst(List::iterator visitor, const auth::Identity& peer,
               std::optional<spawn::Connected> connected, grpc::ByteBuffer& first);

  loop::Loop& loop_;
  OnHello on_hello_;
  loop::Task on_gone_;
  List visitors_;
};

}  // namespace dtrain::session
