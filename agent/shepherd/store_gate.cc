// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/store_gate.h"

#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"
#include "dtrain/v1/store.pb.h"

namespace dtrain::shepherd {
namespace {

// How often a server that no rank has used is started again.
constexpr int kMostStoreStarts = 3;

}  // namespace

absl::StatusOr<std::unique_ptr<StoreGate>> StoreGate::Open(loop::Loop& loop, std::string program,
                                                           const StoreKind& kind,
                                                           const v1::JobPart& part,
                                                           os::UniqueFd held, Hooks hooks) {
  if (listen(held.get(), SOMAXCONN) != 0) {
    return PosixError(errno, absl::StrCat("listen on the port for ", kind.name));
  }
  auto gate = std::unique_ptr<StoreGate>(
      new StoreGate(loop, std::move(program), kind, part, std::move(held), std::move(hooks)));
  if (kind.loss == StoreKind::Loss::kAlways) {
    if (const absl::Status started = gate->helper_.Start(); !started.ok()) {
      return absl::Status(started.code(),
                          absl::StrCat("start ", kind.name, ": ", started.message()));
    }
  } else {
    gate->helper_.AwaitClient();
  }
  return gate;
}

StoreGate::StoreGate(loop::Loop& loop, std::string program, const StoreKind& kind,
                     const v1::JobPart& part, os::UniqueFd listener, Hooks hooks)
    : kind_(kind),
      part_(part),
      hooks_(std::move(hooks)),
      helper_(loop, std::move(program), kind.role, std::move(listener),
              {[this] {
                 ++starts_;
                 return Begin();
               },
               [this](const absl::Status& why) {
                 hooks_.failed(
                     absl::StrCat("cannot start ", kind_.name, ": ", std::string(why.message())),
                     /*ended=*/!lost_.empty());
               },
               [this](absl::string_view frame) { OnFrame(frame); },
               [this](const std::string& how) { OnEnded(how); }}) {}

absl::StatusOr<Helper::Hooks::Beginning> StoreGate::Begin() const {
  if (!lost_.empty()) return absl::UnavailableError(lost_);
  return Helper::Hooks::Beginning{{}, part_.meeting().SerializeAsString()};
}

void StoreGate::Send(const v1::ElasticDown& down) {
  if (absl::Status sent = helper_.Send(down.SerializeAsString()); !sent.ok()) {
    hooks_.failed(absl::StrCat("cannot pass on to ", kind_.name,
                               " what the launcher says: ", std::string(sent.message())),
                  /*ended=*/true);
  }
}

void StoreGate::OnFrame(absl::string_view frame) {
  v1::StoreEvent event;
  if (!event.ParseFromArray(frame.data(), static_cast<int>(frame.size()))) return;
  if (event.used()) used_ = true;
  if (event.has_elastic()) hooks_.elastic(std::move(*event.mutable_elastic()));
  if (event.has_refused()) {
    hooks_.warn(absl::StrCat(kind_.name, " refused ", Escape(event.refused(), 300)));
  }
}

void StoreGate::OnEnded(const std::string& how) {
  const bool is_vital =
      kind_.loss == StoreKind::Loss::kAlways || (kind_.loss == StoreKind::Loss::kIfUsed && used_);
  if (is_vital) {
    return hooks_.failed(
        absl::StrCat(kind_.name, ", a process of dtrain (dtrain-agent ", kind_.role, "), ", how,
                     ", and what ranks had put there is lost; was it killed because memory ran "
                     "out?",
                     kind_.advice),
        /*ended=*/true);
  }
  // What ranks have put there is gone. It may be that nobody wants it any more: they use it when
  // they begin, mostly.
  if (used_) {
    lost_ = absl::StrCat("the previous one (dtrain-agent ", kind_.role, ") ", how,
                         ", and what ranks had put there is lost");
  } else if (starts_ >= kMostStoreStarts) {
    lost_ = absl::StrCat("it has ended ", starts_, " times; the last ", how);
  }
  helper_.AwaitClient();
}

}  // namespace dtrain::shepherd
