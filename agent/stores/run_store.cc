// SPDX-License-Identifier: Apache-2.0
#include "agent/stores/run_store.h"

#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/stores/elastic_server.h"
#include "agent/stores/horovod_server.h"
#include "agent/stores/tcp_session.h"
#include "common/loop/frame_channel.h"
#include "common/loop/loop.h"
#include "common/os/fd.h"
#include "common/os/role.h"
#include "common/os/unique_fd.h"

namespace dtrain::stores {
namespace {

constexpr int kAcceptAtOnce = 64;
// When the system is out of something that a connection needs.
constexpr Duration kAcceptPause = std::chrono::milliseconds(100);
constexpr size_t kMostRefusalsTold = 8;
// Descriptors that are no client's.
constexpr size_t kOwnFiles = 64;

size_t FilesForClients() {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur <= 2 * kOwnFiles) return kOwnFiles;
  return files.rlim_cur - kOwnFiles;
}

size_t RanksOf(const v1::Meeting& meeting) {
  size_t ranks = 0;
  for (const v1::MeetingNode& node : meeting.nodes()) ranks += node.ranks();
  return ranks;
}

// 0: the system does not say.
size_t MemoryOfNode() {
  const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? static_cast<size_t>(pages) * static_cast<size_t>(page) : 0;
}

class Service {
 public:
  Service(loop::Loop& loop, Protocol protocol, os::UniqueFd channel, os::UniqueFd listener)
      : loop_(loop),
        protocol_(protocol),
        listener_(std::move(listener)),
        watch_(loop, listener_.get()),
        pause_(loop),
        channel_(
            loop, std::move(channel),
            [this](absl::string_view frame, const os::UniqueFd& log) {
              if (log) return (void)dup2(log.get(), STDERR_FILENO);
              OnFrame(frame);
            },
            [this](absl::Status) { loop_.Stop(); }) {
    (void)os::SetNonBlocking(listener_.get(), true);
    reports_.used = [this] {
      if (std::exchange(used_, true)) return;
      v1::StoreEvent event;
      event.set_used(true);
      Tell(event);
    };
    reports_.refused = [this](std::string what) {
      if (refused_.size() >= kMostRefusalsTold || !refused_.insert(what).second) return;
      v1::StoreEvent event;
      event.set_refused(std::move(what));
      Tell(event);
    };
    reports_.elastic = [this](const v1::ElasticUp& up) {
      v1::StoreEvent event;
      *event.mutable_elastic() = up;
      Tell(event);
    };
  }

 private:
  void OnFrame(absl::string_view frame) {
    const auto size = static_cast<int>(frame.size());
    v1::Meeting meeting;
    v1::ElasticDown down;
    const bool good = server_ ? down.ParseFromArray(frame.data(), size) && server_->OnDown(down)
                              : meeting.ParseFromArray(frame.data(), size);
    if (!good) return loop_.Stop();
    if (!server_) Begin(meeting);
  }

  void Begin(const v1::Meeting& meeting) {
    if (protocol_ == Protocol::kTcpStore) {
      const TcpLimits limits = LimitsFor(RanksOf(meeting), MemoryOfNode());
      server_ = std::make_unique<TcpServer>(loop_, limits, reports_);
    } else if (meeting.has_elastic()) {
      server_ = std::make_unique<ElasticServer>(loop_, meeting.elastic(), reports_);
    } else {
      server_ = std::make_unique<HorovodServer>(loop_, meeting, reports_);
    }
    admission_.emplace(meeting);
    most_sessions_ = std::min(server_->most_sessions(), FilesForClients());
    AwaitClients();
  }

  void AwaitClients() {
    if (std::exchange(waiting_, true)) return;
    watch_.OnReadable([this] {
      waiting_ = false;
      Accept();
    });
  }

  void Accept() {
    for (int i = 0; i < kAcceptAtOnce && sessions_ < most_sessions_; ++i) {
      os::UniqueFd client(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!client && (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED)) break;
      if (!client) return pause_.After(kAcceptPause, [this] { AwaitClients(); });
      Look(std::move(client));
    }
    if (sessions_ < most_sessions_) AwaitClients();  // else when one is over
  }

  // Another user of this machine gets nothing, and is not worth a word.
  void Look(os::UniqueFd client) {
    const Admission::Guest guest = admission_->Look(client.get());
    if (!guest.welcome && !guest.local) {
      reports_.refused(absl::StrCat("a connection from ", guest.address,
                                    ", which is not an address of this job's nodes"));
    }
    if (!guest.welcome) return;
    ++sessions_;
    const auto protocol = boost::asio::generic::stream_protocol(AF_INET6, IPPROTO_TCP);
    server_->Serve(StreamSocket(loop_.context(), protocol, client.Release()), guest, [this] {
      --sessions_;
      AwaitClients();
    });
  }

  void Tell(const v1::StoreEvent& event) { channel_.Send(event.SerializeAsString()).IgnoreError(); }

  loop::Loop& loop_;
  const Protocol protocol_;
  os::UniqueFd listener_;
  loop::FdWatch watch_;
  loop::Timer pause_;
  loop::FrameChannel channel_;
  Reports reports_;
  std::optional<Admission> admission_;
  std::unique_ptr<Server> server_;
  std::set<std::string> refused_;
  size_t most_sessions_ = 0;
  size_t sessions_ = 0;
  bool waiting_ = false;
  bool used_ = false;
};

}  // namespace

int RunStore(Protocol protocol, int channel, int listener) {
  os::BeginRole(protocol == Protocol::kHorovod ? "dtrain-store" : "dtrain-tcpstore",
                {channel, listener});
  loop::Loop loop;
  auto service =
      std::make_unique<Service>(loop, protocol, os::UniqueFd(channel), os::UniqueFd(listener));
  loop.Run();
  // What clients still do with us ends with the process.
  _exit(0);
}

}  // namespace dtrain::stores
