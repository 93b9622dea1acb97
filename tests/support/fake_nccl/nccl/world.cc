// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_nccl/nccl/world.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>

namespace fake_nccl {
namespace {

constexpr size_t kHeader = (sizeof(Shared) + 4095) / 4096 * 4096;
constexpr size_t kSlots = kMostRanks * kSlot;
constexpr size_t kWhole = kHeader + kSlots + kMostRanks * kMostRanks * kMailbox;

}  // namespace

int World::MakeFile() {
  const int fd = memfd_create("fake_nccl", MFD_CLOEXEC);
  if (fd >= 0 && ftruncate(fd, kWhole) != 0) {
    close(fd);
    return -1;
  }
  return fd;
}

std::shared_ptr<World> World::Open(const Path& path, int rank, int size) {
  if (size > kMostRanks) return nullptr;
  const std::string name = "/proc/" + std::to_string(path.pid) + "/fd/" + std::to_string(path.fd);
  const int fd = open(name.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return nullptr;
  void* memory = mmap(nullptr, kWhole, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  close(fd);
  if (memory == MAP_FAILED) return nullptr;
  auto world = std::shared_ptr<World>(new World(static_cast<Shared*>(memory), rank, size));
  world->mine().pid = getpid();
  return world;
}

World::~World() { munmap(shared_, kWhole); }

bool World::Meet(Meeting& meeting, const Waiter& stop) {
  const uint32_t round = meeting.round.load();
  if (meeting.arrived.fetch_add(1) + 1 == static_cast<uint32_t>(size_)) {
    meeting.arrived.store(0);
    meeting.round.fetch_add(1);
    return true;
  }
  for (Pause pause; meeting.round.load() == round; pause()) {
    if (stop()) return false;
  }
  return true;
}

char* World::slot(int rank) const {
  return reinterpret_cast<char*>(shared_) + kHeader + static_cast<size_t>(rank) * kSlot;
}

char* World::mailbox(int from, int to) const {
  const auto number = static_cast<size_t>(from) * kMostRanks + static_cast<size_t>(to);
  return reinterpret_cast<char*>(shared_) + kHeader + kSlots + number * kMailbox;
}

bool World::Lives(int rank) {
  const int pid = entry(rank).pid;
  if (pid == 0) return true;  // it has not come yet
  const std::string name = "/proc/" + std::to_string(pid) + "/stat";
  const int fd = open(name.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  char text[256] = "";
  const ssize_t n = read(fd, text, sizeof(text) - 1);
  close(fd);
  if (n <= 0) return false;
  const char* end = std::strrchr(text, ')');  // "4711 (name) S ..."
  return end == nullptr || (end[2] != 'Z' && end[2] != 'X');
}

uint64_t HostHash() {
  const char* id = getenv("NCCL_HOSTID");
  char host[HOST_NAME_MAX + 1] = "";
  gethostname(host, sizeof(host) - 1);
  return std::hash<std::string>()(id != nullptr ? id : host);
}

}  // namespace fake_nccl
