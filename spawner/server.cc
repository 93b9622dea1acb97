// SPDX-License-Identifier: Apache-2.0
#include "spawner/server.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "spawner/cgroups.h"
#include "spawner/starter.h"

namespace dtrain::spawner {
namespace {

constexpr int kPacketsAtOnce = 64, kAuditsPerSecond = 50, kCloseAgainMs = 100;
constexpr int kUnread = 1 << 20;  // of answers; the kernel may allow less: net.core.wmem_max
constexpr size_t kMostDying = 64, kMostPassed = 253;  // SCM_MAX_FD

}  // namespace

Server::Server(Options options, Fd listener)
    : options_(std::move(options)), listener_(std::move(listener)), core_(options_.patience) {}

void Server::Poll() {
  using std::chrono::steady_clock;
  for (;;) {
    if (!broken_.empty()) Disconnect();
    core_.OnTick(steady_clock::now());
    const std::vector<SpawnerCore::Action> actions = core_.TakeActions();
    if (actions.empty() && broken_.empty()) break;
    for (const SpawnerCore::Action& action : actions) Carry(steady_clock::now(), action);
  }
  const bool keeps = !given_.empty() && !CloseByExit(&given_, &dying_);
  const bool full = given_.size() > kMostPassed;  // what was given comes first
  const auto heard = [full](const Fd& fd) { return pollfd{full ? -1 : fd.get(), POLLIN, 0}; };
  std::vector<pollfd> fds = {heard(listener_), heard(agent_)};
  for (const Fd& pidfd : dying_) fds.push_back({pidfd.get(), POLLIN, 0});
  const size_t first = fds.size();
  for (const auto& [number, job] : running_) {
    fds.push_back({job.asker.pipe(), POLLIN, 0});
    fds.push_back({job.report.get(), POLLIN, 0});
    fds.push_back({job.reaped ? -1 : job.shepherd.get(), POLLIN, 0});
    fds.push_back({job.events.get(), POLLPRI, 0});
  }
  const int64_t most = keeps ? kCloseAgainMs : 3'600'000;
  const auto next = core_.NextDeadline();
  const int64_t left = next ? std::chrono::ceil<Ms>(*next - steady_clock::now()).count() : most;
  const auto wait = static_cast<int>(std::clamp<int64_t>(left, 0, most));
  if (poll(fds.data(), fds.size(), wait) <= 0) return;
  const Time now = steady_clock::now();
  std::vector<uint64_t> numbers;
  for (const auto& entry : running_) numbers.push_back(entry.first);
  // What is due to one agent is never sent to the next.
  if (fds[1].revents != 0) {
    Receive(now);
  } else if (fds[0].revents != 0) {
    Accept();
  }
  int code, signal;
  std::erase_if(dying_, [&](const Fd& pidfd) { return Reap(pidfd, &code, &signal); });
  for (size_t i = 0; i < numbers.size(); ++i) {
    Running& job = running_.at(numbers[i]);  // until kGone is carried out
    const pollfd* const ready = &fds[first + 4 * i];
    if (ready[0].revents != 0) {
      if (const auto account = job.asker.Read()) OnAnswer(now, numbers[i], *account);
    }
    if (ready[1].revents != 0) {
      StartReport report;
      const ssize_t n = read(job.report.get(), &report, sizeof(report));
      if (n == sizeof(report)) {
        errno = report.error;
        core_.OnFailed(now, numbers[i], report.stage, report.error,
                       Because("start " + options_.shepherd));
      } else if (n == 0) {
        core_.OnStarted(now, numbers[i]);
      }
      if (n >= 0) job.report = Fd();
      Look(now, numbers[i]);
    }
    if (ready[2].revents != 0) job.reaped = Reap(job.shepherd, &job.code, &job.signal);
    if (ready[3].revents != 0) Look(now, numbers[i]);
  }
}

void Server::Look(Time now, uint64_t number) {
  const Running& job = running_.at(number);
  const bool populated = IsPopulated(job.events);  // which also makes poll wait for a change
  if (!job.report && !populated) core_.OnEmpty(now, number);
}

void Server::Accept() {
  Fd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  ucred peer = {};
  socklen_t size = sizeof(peer);
  if (!fd || getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return;
  if (peer.uid != options_.agent_uid || agent_) {
    return Audit(std::chrono::steady_clock::now(),
                 Format("a connection of uid %u: %s", peer.uid,
                        agent_ ? "there is one" : "it is not the agent"));
  }
  setsockopt(fd.get(), SOL_SOCKET, SO_SNDBUF, &kUnread, sizeof(kUnread));
  agent_ = std::move(fd);
  core_.OnPermitted();
  core_.OnAlive(std::chrono::steady_clock::now());
  Log("the agent is connected");
}

void Server::Receive(Time now) {
  // What is given must fit into RLIMIT_NOFILE: else the kernel closes it here.
  for (int i = 0; i < kPacketsAtOnce && given_.size() <= kMostPassed && broken_.empty(); ++i) {
    char packet[kLongestPacket];
    alignas(cmsghdr) char control[CMSG_SPACE(kMostPassed * sizeof(int))];
    iovec part = {packet, sizeof(packet)};
    msghdr message = {nullptr, 0, &part, 1, control, sizeof(control), 0};
    const ssize_t n = recvmsg(agent_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    // Nothing else comes but SCM_RIGHTS: nobody has asked for it.
    cmsghdr* const passed = n >= 0 ? CMSG_FIRSTHDR(&message) : nullptr;
    std::vector<int> fds(passed ? (passed->cmsg_len - CMSG_LEN(0)) / sizeof(int) : 0);
    if (passed) std::memcpy(fds.data(), CMSG_DATA(passed), fds.size() * sizeof(int));
    for (const int fd : fds) given_.emplace_back(fd);
    if (n <= 0) {
      broken_ = "the agent's connection has ended";
    } else if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
      Refuse(0, Stage::kRequest, EMSGSIZE, "longer than a packet, or too many descriptors", true);
    } else {
      OnPacket(now, {packet, static_cast<size_t>(n)}, fds);
    }
  }
}

void Server::Disconnect() {
  Log(std::exchange(broken_, ""));
  given_.push_back(std::move(agent_));  // with what it has sent and nobody has read
  core_.OnDisconnected(std::chrono::steady_clock::now());
}

void Server::OnPacket(Time now, std::string_view packet, const std::vector<int>& fds) {
  Request request;
  const std::string wrong = Parse(packet, fds.size(), &request);
  Header done = {kVersion, Type::kDone, request.header.tag};
  if (!wrong.empty()) return Refuse(done.tag, Stage::kRequest, EPROTO, wrong, true);
  if (request.header.type == Type::kSpawn) return OnSpawn(now, request.spawn, fds);
  core_.OnPermitted();
  if (request.header.type == Type::kAlive) {
    core_.OnAlive(now);
  } else if (request.header.type != Type::kKill) {
    return SendJobs(now, done.tag);
  } else if (!core_.OnKill(now, request.kill.name)) {
    return Refuse(done.tag, Stage::kUnknown, ESRCH, "there is no " + Told(request.kill.name));
  }
  Send(done);
}

void Server::OnSpawn(Time now, const SpawnRequest& request, const std::vector<int>& fds) {
  const uint32_t tag = request.header.tag;
  uid_t uid = UINT32_MAX;
  uint64_t cookie = 0;
  std::string who = request.account;
  if (request.proof == Proof::kConnection) {
    std::string why;
    bool breach = true;
    uid = Prove(fds[0], &cookie, &why, &breach);
    if (uid == UINT32_MAX) return Refuse(tag, Stage::kProof, EACCES, why, breach);
    who = Format("uid %u", uid);
  } else if (!options_.policy.trust_agent_tls) {
    return Refuse(tag, Stage::kPolicy, EACCES, "trust-agent-tls is no");
  }
  core_.OnPermitted();
  if (dying_.size() >= kMostDying) return Refuse(tag, Stage::kBusy, EAGAIN, "64 look-ups hang");
  const std::string why = core_.OnSpawn(now, request, uid, who);
  if (!why.empty()) return Refuse(tag, Stage::kBusy, EAGAIN, why);
  if (cookie != 0) used_.push_back(running_[core_.jobs().rbegin()->first].cookie = cookie);
  if (used_.size() > 4096) used_.pop_front();
}

uid_t Server::Prove(int fd, uint64_t* cookie, std::string* why, bool* breach) const {
  const auto option = [&](int name, auto* value) {
    socklen_t size = sizeof(*value);
    return getsockopt(fd, SOL_SOCKET, name, value, &size) == 0 && size == sizeof(*value);
  };
  int domain = 0, type = 0;
  ucred peer = {};
  sockaddr_un own, other;
  socklen_t own_size = sizeof(own), other_size = sizeof(other);
  const bool is_stream = option(SO_DOMAIN, &domain) && domain == AF_UNIX &&
                         option(SO_TYPE, &type) && type == SOCK_STREAM;
  pollfd state{fd, POLLRDHUP, 0};
  if (!is_stream || !option(SO_COOKIE, cookie) || !option(SO_PEERCRED, &peer)) {
    *why = "the descriptor is not a unix stream";
  } else if (std::find(used_.begin(), used_.end(), *cookie) != used_.end()) {
    *why = "the connection has started a job before";
  } else if (poll(&state, 1, 0) != 0) {
    *breach = false;
    *why = "who was connected has gone";
  } else if (getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_size) != 0 ||
             own_size <= sizeof(sa_family_t) ||
             getpeername(fd, reinterpret_cast<sockaddr*>(&other), &other_size) != 0 ||
             other_size > sizeof(sa_family_t)) {
    // The other end of a socket that listens has that one's name, and a socket pair has none.
    *why = "the descriptor is not an accepted connection";
  } else {
    return peer.uid;
  }
  return UINT32_MAX;
}

void Server::SendJobs(Time now, uint32_t tag) {
  Jobs answer;
  answer.header.tag = tag;
  const auto send = [&] {
    Send(&answer, offsetof(Jobs, entries) + answer.count * sizeof(JobEntry));
    answer.count = 0;
  };
  for (const auto& [number, job] : core_.jobs()) {
    if (answer.count == kMostEntries) {
      answer.more = 1;
      send();
    }
    JobEntry& entry = answer.entries[answer.count++] = JobEntry();
    entry.name = job.name;
    entry.state = job.state;
    entry.lease_ms = static_cast<uint32_t>(job.lease.count());
    entry.grace_ms = static_cast<uint32_t>(job.grace.count());
    entry.since_ms = static_cast<uint64_t>(std::chrono::duration_cast<Ms>(now - job.since).count());
    PutPaths(job.name, entry.link, entry.cgroup);
  }
  answer.more = 0;
  send();
}

void Server::Send(const void* packet, size_t size, std::vector<int> fds) {
  if (!agent_ || !broken_.empty()) return;
  iovec part = {const_cast<void*>(packet), size};
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  }
  if (sendmsg(agent_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return;
  broken_ = Because("write to the agent, whose connection ends");
}

void Server::Refuse(uint32_t tag, Stage stage, int error, const std::string& words, bool breach) {
  Refused answer;
  answer.header.tag = tag;
  answer.stage = stage;
  answer.error = error;
  Put(Escape(words), answer.words);
  Audit(std::chrono::steady_clock::now(),
        Format("stage %u, ", static_cast<unsigned>(stage)) + answer.words);
  Send(answer);
  if (breach && core_.OnBreach()) broken_ = "the agent breaks the rules; its connection ends";
}

void Server::Audit(Time now, const std::string& line) {
  if (now >= audited_since_ + std::chrono::seconds(1)) {
    if (audited_ > kAuditsPerSecond)
      Log(Format("audit: refused %d more", audited_ - kAuditsPerSecond));
    audited_since_ = now;
    audited_ = 0;
  }
  if (++audited_ <= kAuditsPerSecond) Log("audit: refused: " + line);
}

void Server::PutPaths(const Name& name, char (&link)[kPathSize], char (&cgroup)[kPathSize]) const {
  Put(FolderOf(name) + "/link.sock", link);
  Put(CgroupOf(options_.jobs, name), cgroup);
}

}  // namespace dtrain::spawner
