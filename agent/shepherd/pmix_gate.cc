// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/pmix_gate.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "agent/shepherd/preflight.h"
#include "common/base/posix_error.h"
#include "common/log/log.h"

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

namespace {

// How often a helper that no rank has used is started again.
constexpr int kMostStarts = 3;
// What the ranks of a node may put for one fence: far above any MPI's need.
constexpr size_t kMostData = 16 << 20;

bool HelpsToFindLibraries(absl::string_view entry) {
  for (const char* name : {"LD_LIBRARY_PATH=", "PATH=", "PMIX_PREFIX=", "PMIX_INSTALL_PREFIX="}) {
    if (absl::StartsWith(entry, name)) return true;
  }
  return false;
}

}  // namespace

std::string PmixName(const v1::JobPart& part) {
  return absl::StrCat(part.job_id(), "-", part.attempt());
}

absl::StatusOr<std::unique_ptr<PmixGate>> PmixGate::Open(loop::Loop& loop, std::string program,
                                                         const v1::JobPart& part, Hooks hooks) {
  os::UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (!listener || bind(listener.get(), generic, size) != 0 ||
      listen(listener.get(), SOMAXCONN) != 0 || getsockname(listener.get(), generic, &size) != 0) {
    if (errno == EADDRNOTAVAIL) {
      return absl::UnavailableError(
          "listen on a port of 127.0.0.1: this machine has no such address");
    }
    return PosixError(errno, "listen on a port of 127.0.0.1");
  }
  return std::unique_ptr<PmixGate>(new PmixGate(loop, std::move(program), part, std::move(hooks),
                                                std::move(listener), ntohs(address.sin_port)));
}

PmixGate::PmixGate(loop::Loop& loop, std::string program, const v1::JobPart& part, Hooks hooks,
                   os::UniqueFd listener, uint16_t port)
    : part_(part),
      hooks_(std::move(hooks)),
      port_(port),
      helper_(loop, std::move(program), "pmix", std::move(listener),
              {[this] { return Begin(); },
               [this](const absl::Status& why) {
                 Fail(absl::StrCat("cannot start its PMIx server: ", std::string(why.message())),
                      /*ended=*/false);
               },
               [this](absl::string_view frame) { OnFrame(frame); },
               [this](const std::string& how) { OnEnded(how); }}) {}

void PmixGate::Serve(Environment env, std::vector<std::string> folders) {
  env_ = std::move(env);
  folders_ = std::move(folders);
  helper_.AwaitClient();
}

absl::StatusOr<Helper::Hooks::Beginning> PmixGate::Begin() {
  ++starts_;
  for (size_t i = 0; folder_.empty() && i < folders_.size(); ++i) {
    std::string name = absl::StrCat(folders_[i], "/dtrain-pmix-XXXXXX");
    if (mkdtemp(name.data()) != nullptr) folder_ = std::move(name);
  }
  if (folder_.empty()) return PosixError(errno, "make a folder for it");
  Helper::Hooks::Beginning beginning;
  for (std::string& entry : env_()) {
    if (HelpsToFindLibraries(entry)) beginning.env.push_back(std::move(entry));
  }
  v1::PmixRequest request;
  v1::PmixStart& start = *request.mutable_start();
  start.set_name(PmixName(part_));
  start.set_node_rank(part_.node_rank());
  start.set_host(part_.host());
  start.set_directory(folder_);
  start.set_crowded(IsCrowded(part_));
  beginning.frame = request.SerializeAsString();
  return beginning;
}

void PmixGate::OnFrame(absl::string_view frame) {
  v1::PmixEvent event;
  if (!event.ParseFromArray(frame.data(), static_cast<int>(frame.size()))) {
    return Fail("its PMIx server sent an unreadable message", /*ended=*/true);
  }
  switch (event.kind_case()) {
    case v1::PmixEvent::kUp:
      used_ = true;
      if (event.up().fence().data().size() > kMostData) {
        return Fail(absl::StrCat("its ranks put ", event.up().fence().data().size(),
                                 " bytes for one PMIx fence; ", kMostData, " is the most"),
                    /*ended=*/false);
      }
      return hooks_.up(std::move(*event.mutable_up()));
    case v1::PmixEvent::kAbort:
      return hooks_.abort(event.abort().rank(), event.abort().code());
    case v1::PmixEvent::kFailed:
      return Fail(std::move(*event.mutable_failed()), /*ended=*/false);
    case v1::PmixEvent::KIND_NOT_SET:
      return;
  }
}

void PmixGate::OnEnded(const std::string& how) {
  if (!used_ && starts_ < kMostStarts) return helper_.AwaitClient();
  Fail(absl::StrCat("its PMIx server (dtrain-agent pmix) ", how,
                    ", so its ranks cannot reach the others any more"),
       /*ended=*/true);
}

void PmixGate::Fail(std::string why, bool ended) {
  if (!std::exchange(failed_, true)) hooks_.failed(std::move(why), ended);
}

void PmixGate::OnDown(const v1::PmixDown& down) {
  v1::PmixRequest request;
  *request.mutable_down() = down;
  if (absl::Status sent = helper_.Send(request.SerializeAsString()); !sent.ok()) {
    Fail(absl::StrCat("cannot pass PMIx data on: ", std::string(sent.message())), /*ended=*/false);
  }
}

void PmixGate::End(loop::Task done) {
  helper_.End([this, done = std::move(done)]() mutable {
    std::error_code error;
    if (!folder_.empty()) std::filesystem::remove_all(std::exchange(folder_, ""), error);
    if (error) log::Warn(absl::StrCat("files of the PMIx server stay behind: ", error.message()));
    done();
  });
}

}  // namespace dtrain::shepherd
