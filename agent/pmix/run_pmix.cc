// SPDX-License-Identifier: Apache-2.0
#include "agent/pmix/run_pmix.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/pmix/hand_over.h"
#include "agent/pmix/pmix_library.h"
#include "common/loop/frame_channel.h"
#include "common/loop/loop.h"
#include "common/os/credentials.h"
#include "common/os/fd.h"
#include "common/os/role.h"
#include "common/os/unique_fd.h"

namespace dtrain::pmix {
namespace {

constexpr int kAcceptAtOnce = 64;

// From the first client to the last.
class Service {
 public:
  Service(loop::Loop& loop, os::UniqueFd channel, os::UniqueFd listener)
      : loop_(loop),
        listener_(std::move(listener)),
        watch_(loop, listener_.get()),
        channel_(
            loop, std::move(channel),
            [this](absl::string_view frame, const os::UniqueFd& log) {
              if (log) return (void)dup2(log.get(), STDERR_FILENO);
              OnFrame(frame);
            },
            [this](absl::Status) { loop_.Stop(); }) {
    (void)os::SetNonBlocking(listener_.get(), true);
  }

 private:
  void OnFrame(absl::string_view frame) {
    v1::PmixRequest request;
    if (!request.ParseFromArray(frame.data(), static_cast<int>(frame.size()))) {
      return Fail("its PMIx server was sent an unreadable message");
    }
    if (request.has_start()) {
      start_ = std::move(*request.mutable_start());
      return AwaitClients();
    }
    OnDown(request.down());
  }

  void OnDown(const v1::PmixDown& down) {
    if (library_ == nullptr) return;  // it has failed
    switch (down.kind_case()) {
      case v1::PmixDown::kJob:
        return Serve(down.job());
      case v1::PmixDown::kFenceDone:
        return library_->FenceDone(down.fence_done());
      case v1::PmixDown::kWanted:
        return library_->Wanted(down.wanted());
      case v1::PmixDown::kFound:
        return library_->Found(down.found());
      case v1::PmixDown::KIND_NOT_SET:
        return;
    }
  }

  void AwaitClients() {
    watch_.OnReadable([this] {
      Accept();
      AwaitClients();
    });
  }

  void Accept() {
    for (int i = 0; i < kAcceptAtOnce; ++i) {
      os::UniqueFd client(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!client) break;
      // Another user of this machine gets nothing, and is not worth a word.
      const absl::StatusOr<uid_t> owner = os::OwnerOfLocalPeer(client.get());
      if (!owner.ok() || *owner != getuid()) continue;
      if (port_) {
        Give(std::move(client));
      } else {
        clients_.push_back(std::move(client));
      }
    }
    if (!clients_.empty() && !asked_) Begin();
  }

  // The first rank is here.
  void Begin() {
    asked_ = true;
    v1::PmixUp ask;
    ask.mutable_ask();
    Up(std::move(ask));
    if (absl::Status begun = HandOver::Begin(); !begun.ok()) return FailWith(begun);
    auto library = PmixLibrary::Open(loop_, start_,
                                     {[this](v1::PmixUp up) { Up(std::move(up)); },
                                      [this](uint32_t rank, int code) {
                                        v1::PmixEvent event;
                                        event.mutable_abort()->set_rank(rank);
                                        event.mutable_abort()->set_code(code);
                                        Send(event);
                                      }});
    if (!library.ok()) return FailWith(library.status());
    library_ = *std::move(library);
  }

  void Serve(const v1::PmixJob& job) {
    if (port_) return;
    if (absl::Status known = library_->Register(job); !known.ok()) return FailWith(known);
    auto port = library_->Port();
    if (!port.ok()) return FailWith(port.status());
    port_ = *port;
    for (os::UniqueFd& client : std::exchange(clients_, {})) Give(std::move(client));
  }

  void Give(os::UniqueFd client) {
    if (absl::Status given = HandOver::Give(std::move(client), *port_); !given.ok())
      FailWith(given);
  }

  void Up(v1::PmixUp up) {
    v1::PmixEvent event;
    *event.mutable_up() = std::move(up);
    Send(event);
  }

  void Send(const v1::PmixEvent& event) {
    absl::Status sent = channel_.Send(event.SerializeAsString());
    if (!sent.ok()) FailWith(sent);
  }

  void FailWith(const absl::Status& why) {
    const bool absent = absl::IsNotFound(why);
    if (absent || absl::IsUnimplemented(why)) {
      return Fail(absl::StrCat(
          "a rank uses PMIx, as Open MPI does, and this node cannot serve it: ",
          std::string(why.message()),
          absent
              ? "; install the library (package libpmix2 on Debian and Ubuntu, pmix elsewhere), or "
                "name its folder in LD_LIBRARY_PATH with -x"
              : "; build it where libpmix-dev is installed"));
    }
    Fail(absl::StrCat("cannot serve PMIx: ", std::string(why.message())));
  }

  // Who has connected is not let go: a rank would go on as if it were the only one.
  void Fail(std::string why) {
    v1::PmixEvent event;
    event.set_failed(std::move(why));
    (void)channel_.Send(event.SerializeAsString());
  }

  loop::Loop& loop_;
  os::UniqueFd listener_;
  loop::FdWatch watch_;
  loop::FrameChannel channel_;
  v1::PmixStart start_;
  bool asked_ = false;
  std::unique_ptr<PmixLibrary> library_;
  std::optional<uint16_t> port_;       // of the library, once it knows the job
  std::vector<os::UniqueFd> clients_;  // until then
};

}  // namespace

int RunPmix(int channel, int listener) {
  os::BeginRole("dtrain-pmix", {channel, listener});
  loop::Loop loop;
  Service service(loop, os::UniqueFd(channel), os::UniqueFd(listener));
  loop.Run();
  return 0;
}

}  // namespace dtrain::pmix
