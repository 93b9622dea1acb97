// SPDX-License-Identifier: Apache-2.0
#include "agent/stores/run_store.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "agent/stores/horovod_store.h"
#include "agent/stores/http_session.h"
#include "common/loop/frame_channel.h"
#include "common/loop/loop.h"
#include "common/os/credentials.h"
#include "common/os/fd.h"
#include "common/os/signals.h"
#include "common/os/unique_fd.h"

namespace dtrain::stores {
namespace {

constexpr int kAcceptAtOnce = 64;
// At a time. Others wait in the listener's queue.
constexpr size_t kMostSessions = 1024;
constexpr size_t kMostRefusalsTold = 3;

// "10.0.0.1", also of an IPv4 address that came to an IPv6 socket. Empty: neither.
std::string Text(const sockaddr& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, text, sizeof(text));
  } else if (address.sa_family == AF_INET6) {
    const in6_addr& six = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
    const bool mapped = IN6_IS_ADDR_V4MAPPED(&six);
    inet_ntop(mapped ? AF_INET : AF_INET6, &six.s6_addr[mapped ? 12 : 0], text, sizeof(text));
  }
  return text;
}

std::set<std::string> OwnAddresses() {
  std::set<std::string> own;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return own;
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr != nullptr) own.insert(Text(*each->ifa_addr));
  }
  freeifaddrs(all);
  return own;
}

class Service {
 public:
  Service(loop::Loop& loop, os::UniqueFd channel, os::UniqueFd listener)
      : loop_(loop),
        listener_(std::move(listener)),
        watch_(loop, listener_.get()),
        channel_(
            loop, std::move(channel),
            [this](absl::string_view frame, os::UniqueFd) { Begin(frame); },
            [this](absl::Status) { loop_.Stop(); }) {
    (void)os::SetNonBlocking(listener_.get(), true);
  }

 private:
  void Begin(absl::string_view frame) {
    v1::Meeting meeting;
    if (store_ || !meeting.ParseFromArray(frame.data(), static_cast<int>(frame.size()))) {
      return loop_.Stop();
    }
    store_.emplace(meeting);
    for (const v1::MeetingNode& node : meeting.nodes()) {
      addresses_.insert(node.addresses().begin(), node.addresses().end());
    }
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
    for (int i = 0; i < kAcceptAtOnce && sessions_ < kMostSessions; ++i) {
      os::UniqueFd client(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!client) break;
      if (MayCome(client.get())) Serve(std::move(client));
    }
    if (sessions_ < kMostSessions) AwaitClients();  // else when one is over
  }

  // Of this machine the job's user, of others the job's nodes. The protocol has nothing else to
  // know a client by. Nodes may have addresses that this one has as well, of a bridge for example.
  bool MayCome(int fd) {
    sockaddr_storage peer{};
    auto* const generic = reinterpret_cast<sockaddr*>(&peer);
    socklen_t size = sizeof(peer);
    if (getpeername(fd, generic, &size) != 0) return false;
    const std::string address = Text(*generic);
    if (own_.contains(address)) {
      const absl::StatusOr<uid_t> owner = os::OwnerOfLocalPeer(fd);
      return owner.ok() && *owner == getuid();
    }
    if (addresses_.contains(address)) return true;
    if (refused_.size() < kMostRefusalsTold && refused_.insert(address).second) {
      v1::StoreEvent event;
      event.set_refused(address);
      Tell(event);
    }
    return false;
  }

  void Serve(os::UniqueFd client) {
    if (!std::exchange(used_, true)) {
      v1::StoreEvent event;
      event.set_used(true);
      Tell(event);
    }
    ++sessions_;
    const auto protocol = boost::asio::generic::stream_protocol(AF_INET6, IPPROTO_TCP);
    std::make_shared<HttpSession>(loop_, StreamSocket(loop_.context(), protocol, client.Release()),
                                  *store_,
                                  [this] {
                                    --sessions_;
                                    AwaitClients();
                                  })
        ->Start();
  }

  void Tell(const v1::StoreEvent& event) { channel_.Send(event.SerializeAsString()).IgnoreError(); }

  loop::Loop& loop_;
  os::UniqueFd listener_;
  loop::FdWatch watch_;
  loop::FrameChannel channel_;
  std::optional<HorovodStore> store_;
  const std::set<std::string> own_ = OwnAddresses();
  std::set<std::string> addresses_, refused_;
  size_t sessions_ = 0;
  bool waiting_ = false;
  bool used_ = false;
};

}  // namespace

int RunStore(int channel, int listener) {
  for (const int fd : {channel, listener}) fcntl(fd, F_SETFD, FD_CLOEXEC);
  os::FailWritesWithoutSignals();
  prctl(PR_SET_NAME, "dtrain-store");
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &files);
  loop::Loop loop;
  auto service = std::make_unique<Service>(loop, os::UniqueFd(channel), os::UniqueFd(listener));
  loop.Run();
  // What clients still do with us ends with the process.
  _exit(0);
}

}  // namespace dtrain::stores
