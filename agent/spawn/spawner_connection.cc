// SPDX-License-Identifier: Apache-2.0
#include "agent/spawn/spawner_connection.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/posix_error.h"
#include "common/os/credentials.h"

namespace dtrain::spawn {
namespace {

constexpr Duration kAlivePeriod = std::chrono::seconds(5);
// It has limits of its own: 20 s for the account, 5 s for the start.
constexpr Duration kSpawnLimit = std::chrono::seconds(35);
constexpr int kPacketsAtOnce = 64;
// 256 run at most, and some that begin or end.
constexpr size_t kMostJobsListed = 1024;

bool Answers(spawner::Type type, const SpawnerWord& word) {
  if (std::holds_alternative<SpawnerRefused>(word)) {
    return type == spawner::Type::kSpawn || type == spawner::Type::kKill;
  }
  switch (type) {
    case spawner::Type::kSpawn:
      return std::holds_alternative<SpawnerStarted>(word);
    case spawner::Type::kList:
      return std::holds_alternative<SpawnerJobs>(word);
    default:
      return std::holds_alternative<SpawnerDone>(word);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<SpawnerConnection>> SpawnerConnection::Open(loop::Loop& loop,
                                                                           const std::string& path,
                                                                           OnEvent on_event,
                                                                           OnClosed on_closed,
                                                                           Duration answer_limit) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (path.size() >= sizeof(name.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is too long for a unix socket"));
  }
  std::memcpy(name.sun_path, path.data(), path.size());
  os::UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return PosixError(errno, "make a socket");
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0) {
    return PosixError(errno, absl::StrCat("connect to ", path));
  }
  auto peer = os::PeerOf(fd.get());
  if (!peer.ok()) return peer.status();
  if (peer->uid != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("user id ", peer->uid, " listens on ", path, ", and not root"));
  }
  return std::unique_ptr<SpawnerConnection>(new SpawnerConnection(
      loop, std::move(fd), std::move(on_event), std::move(on_closed), answer_limit));
}

SpawnerConnection::SpawnerConnection(loop::Loop& loop, os::UniqueFd socket, OnEvent on_event,
                                     OnClosed on_closed, Duration answer_limit)
    : loop_(loop),
      socket_(std::move(socket)),
      on_event_(std::move(on_event)),
      on_closed_(std::move(on_closed)),
      answer_limit_(answer_limit),
      watch_(loop, socket_.get()),
      alive_pause_(loop) {
  Await();
  alive_pause_.After(kAlivePeriod, [this] { StayAlive(); });
}

SpawnerConnection::~SpawnerConnection() { *alive_ = false; }

absl::Status SpawnerConnection::Spawn(const SpawnAsk& ask, int connection, OnAnswer done) {
  const uint32_t tag = ++last_tag_;
  auto packet = EncodeSpawn(tag, ask);
  if (!packet.ok()) return packet.status();
  Ask(spawner::Type::kSpawn, tag, *packet, connection, kSpawnLimit, std::move(done));
  return absl::OkStatus();
}

void SpawnerConnection::Kill(const JobKey& key, OnAnswer done) {
  const uint32_t tag = ++last_tag_;
  Ask(spawner::Type::kKill, tag, EncodeKill(tag, key), -1, answer_limit_, std::move(done));
}

void SpawnerConnection::List(OnAnswer done) {
  const uint32_t tag = ++last_tag_;
  Ask(spawner::Type::kList, tag, EncodePlain(spawner::Type::kList, tag), -1, answer_limit_,
      std::move(done));
}

void SpawnerConnection::StayAlive() {
  const uint32_t tag = ++last_tag_;
  Ask(spawner::Type::kAlive, tag, EncodePlain(spawner::Type::kAlive, tag), -1, answer_limit_,
      [](const absl::StatusOr<Answer>&) {});
  alive_pause_.After(kAlivePeriod, [this] { StayAlive(); });
}

void SpawnerConnection::Ask(spawner::Type type, uint32_t tag, const std::string& packet, int fd,
                            Duration limit, OnAnswer done) {
  Call& call = calls_[tag];
  call.type = type;
  call.done = std::move(done);
  call.limit = std::make_unique<loop::Timer>(loop_);
  call.limit->After(limit, [this, limit] {
    End(absl::StrCat("it has not answered within ",
                     std::chrono::duration_cast<std::chrono::seconds>(limit).count(), " s"));
  });
  iovec part = {const_cast<char*>(packet.data()), packet.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
  }
  if (sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    End(absl::StrCat("write to it: ", PosixErrorText(errno)));
  }
}

void SpawnerConnection::Await() {
  watch_.OnReadable([this] { Receive(); });
}

void SpawnerConnection::Receive() {
  const std::shared_ptr<bool> alive = alive_;
  for (int i = 0; i < kPacketsAtOnce && ReceiveOne(); ++i) {
  }
  if (*alive && ended_why_.empty()) Await();
}

bool SpawnerConnection::ReceiveOne() {
  if (!ended_why_.empty()) return false;
  char* const bytes = loop_.scratch();
  static_assert(spawner::kLongestPacket < loop::Loop::kScratchBytes);
  alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))];
  iovec part = {bytes, spawner::kLongestPacket};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t count = recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  std::vector<os::UniqueFd> fds;
  for (cmsghdr* at = CMSG_FIRSTHDR(&message); count >= 0 && at != nullptr;
       at = CMSG_NXTHDR(&message, at)) {
    if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS) continue;
    for (size_t i = 0; i < (at->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(at) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
  if (count < 0) {
    End(absl::StrCat("read from it: ", PosixErrorText(errno)));
    return false;
  }
  if (count == 0) {
    End("it has closed the connection: it has ended, or another agent is connected to it");
    return false;
  }
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    End("dtrain-spawner sent more than a packet may have");
    return false;
  }
  auto packet = DecodeSpawnerPacket({bytes, static_cast<size_t>(count)}, fds.size());
  if (!packet.ok()) {
    End(std::string(packet.status().message()));
    return false;
  }
  const std::shared_ptr<bool> alive = alive_;
  OnPacket(*std::move(packet), std::move(fds));
  return *alive;
}

void SpawnerConnection::OnPacket(SpawnerPacket packet, std::vector<os::UniqueFd> fds) {
  if (std::holds_alternative<SpawnerEnded>(packet.word) ||
      std::holds_alternative<SpawnerUnkillable>(packet.word)) {
    return on_event_(packet.word);
  }
  const auto found = calls_.find(packet.tag);
  if (found == calls_.end()) {
    const auto* refused = std::get_if<SpawnerRefused>(&packet.word);
    return End(refused != nullptr
                   ? absl::StrCat("it does not understand this agent: ", refused->words)
                   : "dtrain-spawner sent an answer to what nobody asked");
  }
  Call& call = found->second;
  if (!Answers(call.type, packet.word)) {
    return End("dtrain-spawner sent an answer to another request than was made");
  }
  if (auto* jobs = std::get_if<SpawnerJobs>(&packet.word)) {
    for (SpawnerJob& job : jobs->jobs) call.jobs.push_back(std::move(job));
    if (call.jobs.size() > kMostJobsListed) return End("dtrain-spawner sent jobs without an end");
    if (jobs->more) return;
    jobs->jobs = std::move(call.jobs);
  }
  OnAnswer done = std::move(call.done);
  calls_.erase(found);
  done(Answer{std::move(packet.word), std::move(fds)});  // may destroy us
}

void SpawnerConnection::End(std::string why) {
  if (!ended_why_.empty()) return;
  ended_why_ = std::move(why);
  alive_pause_.Cancel();
  loop_.Post([this, alive = alive_] {
    if (!*alive) return;
    std::map<uint32_t, Call> calls = std::exchange(calls_, {});
    for (auto& [tag, call] : calls) {
      call.limit->Cancel();
      call.done(absl::UnavailableError(ended_why_));
      if (!*alive) return;
    }
    std::exchange(on_closed_, nullptr)(ended_why_);
  });
}

}  // namespace dtrain::spawn
