// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_nccl/nccl/root.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "tests/support/fake_nccl/nccl/codes.h"
#include "tests/support/fake_nccl/nccl/knobs.h"
#include "tests/support/fake_nccl/nccl/profile.h"

namespace fake_nccl {
namespace {

constexpr uint64_t kMagic = 0x66616b656e63636c;

struct Greeting {
  uint64_t magic;
  int32_t rank, size;
};

bool Receive(int socket, void* bytes, size_t size) {
  return recv(socket, bytes, size, MSG_WAITALL) == static_cast<ssize_t>(size);
}

bool Give(int socket, const void* bytes, size_t size) {
  return send(socket, bytes, size, MSG_NOSIGNAL) == static_cast<ssize_t>(size);
}

// Nothing ends it but the last rank: an initialisation that not all reach leaves it behind.
void Serve(int listener, int file) {
  int left = 1;
  bool first = true;
  while (left > 0) {
    const int peer = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (peer < 0) break;
    Greeting greeting{};
    const Path path{getpid(), file};
    char opened = 0;
    if (Receive(peer, &greeting, sizeof(greeting)) && greeting.magic == kMagic &&
        Give(peer, &path, sizeof(path)) && Receive(peer, &opened, 1)) {
      left = first ? greeting.size - 1 : left - 1;
      first = false;
    }
    close(peer);
  }
  close(listener);
  close(file);
}

int Connect(const UniqueId& id, int rank, const Waiter& stop, int& code) {
  sockaddr_in address{};
  std::memcpy(&address, id.bytes + 8, sizeof(address));
  const bool refused = Asked("FAKE_NCCL_REFUSED", rank);
  const auto end = std::chrono::steady_clock::now() + TheProfile().patience;
  for (;;) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && !refused &&
        connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
      return fd;
    }
    close(fd);
    code = kInProgress;
    if (stop()) return -1;
    if (std::chrono::steady_clock::now() >= end) {
      char text[INET_ADDRSTRLEN] = "";
      inet_ntop(AF_INET, &address.sin_addr, text, sizeof(text));
      const std::string all = "connect to " + std::string(text) + "<" +
                              std::to_string(ntohs(address.sin_port)) +
                              "> failed : Connection refused";
      code = Fail(kRemoteError, all.c_str());
      return -1;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

int MakeRoot(UniqueId& id) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (listener < 0 || bind(listener, generic, size) != 0 || listen(listener, kMostRanks) != 0 ||
      getsockname(listener, generic, &size) != 0) {
    if (listener >= 0) close(listener);
    return Fail(kSystemError, "the root cannot listen");
  }
  const int file = World::MakeFile();
  if (file < 0) {
    close(listener);
    return Fail(kSystemError, "no memory file");
  }
  std::memset(&id, 0, sizeof(id));
  std::memcpy(id.bytes, &kMagic, sizeof(kMagic));
  std::memcpy(id.bytes + 8, &address, sizeof(address));
  std::thread(Serve, listener, file).detach();
  return kSuccess;
}

int AskRoot(const UniqueId& id, int rank, int size, const Waiter& stop,
            std::shared_ptr<World>& world) {
  int code = kSuccess;
  const int fd = Connect(id, rank, stop, code);
  if (fd < 0) return code;
  const Greeting greeting{kMagic, rank, size};
  Path path;
  if (Give(fd, &greeting, sizeof(greeting)) && Receive(fd, &path, sizeof(path))) {
    world = World::Open(path, rank, size);
    const char opened = 1;
    Give(fd, &opened, 1);
  }
  close(fd);
  return world == nullptr ? Fail(kSystemError, "the root is gone") : kSuccess;
}

}  // namespace fake_nccl
