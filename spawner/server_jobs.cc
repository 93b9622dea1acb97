// SPDX-License-Identifier: Apache-2.0
// What the server does for each job; server.cc has the loop and the agent's connection.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "spawner/cgroups.h"
#include "spawner/server.h"
#include "spawner/starter.h"

namespace dtrain::spawner {
namespace {

// Which a plain folder of a job has: UID.JOB.ATTEMPT
bool ParseFolder(const std::string& folder, Name* name) {
  const size_t first = folder.find('.'), last = folder.rfind('.');
  if (first == folder.npos || first == last) return false;
  const std::string job = folder.substr(first + 1, last - first - 1);
  name->uid = static_cast<uint32_t>(strtoul(folder.c_str(), nullptr, 10));
  name->attempt = static_cast<uint32_t>(strtoul(folder.c_str() + last + 1, nullptr, 10));
  return IsPlainJob(job) && Put(job, name->job) &&
         Format("%u.%s.%u", name->uid, name->job, name->attempt) == folder;
}

void RemoveFolder(const std::string& path) {
  for (const char* file : {"/link.sock", "/lease", ""}) {
    if (*file != '\0') unlink((path + file).c_str());
  }
  if (rmdir(path.c_str()) != 0 && errno != ENOENT) Log(Because("remove " + path));
}

// At `folder`, only for root and that group. Its path may be too long for an address.
Fd ListenIn(const std::string& folder, gid_t group) {
  const Fd directory(open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  Fd link(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  Put(Format("/proc/self/fd/%d/link.sock", directory.get()), address.sun_path);
  const std::string path = folder + "/link.sock";
  if (!directory || !link ||
      bind(link.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      chown(path.c_str(), 0, group) != 0 || chmod(path.c_str(), 0660) != 0 ||
      listen(link.get(), 16) != 0) {
    return Fd();
  }
  return link;
}

}  // namespace

std::string Told(const Name& name) {
  return name.uid == UINT32_MAX ? Format("job %s.%u", name.job, name.attempt)
                                : Format("job %s.%u of uid %u", name.job, name.attempt, name.uid);
}

void Server::Adopt() {
  const Time now = std::chrono::steady_clock::now();
  const std::string folders = options_.run_dir + "/jobs";
  std::vector<std::string> known;
  for (const std::string& folder : Folders(folders)) {
    Name name;
    if (!ParseFolder(folder, &name) || access(CgroupOf(options_.jobs, name).c_str(), F_OK) != 0) {
      RemoveFolder(folders + "/" + folder);
      continue;
    }
    unsigned lease = 0, grace = 0;
    if (sscanf(ReadFile(folders + "/" + folder + "/lease", 64).c_str(), "%u %u", &lease, &grace) !=
        2) {
      Log(Told(name) + ": its lease is lost");
    }
    const uint64_t number = core_.Adopt(now, name, Ms(lease), Ms(grace));
    running_[number].events =
        Fd(open((CgroupOf(options_.jobs, name) + "/cgroup.events").c_str(), O_RDONLY | O_CLOEXEC));
    if (!LimitJob(CgroupOf(options_.jobs, name), options_.policy.limits)) {
      Log(Because(Told(name) + ": limit it again"));
    }
    Log(Told(name) + ": taken over");
    Look(now, number);
    known.push_back(CgroupOf(options_.jobs, name));
  }
  for (const std::string& user : Folders(options_.jobs)) {
    for (const std::string& job : Folders(options_.jobs + "/" + user)) {
      Name name;
      const std::string path = options_.jobs + "/" + user + "/" + job;
      if (std::find(known.begin(), known.end(), path) != known.end()) continue;
      // Without its folder nobody can reach it.
      if (ParseFolder(user.substr(1) + "." + job, &name)) {
        const uint64_t number = core_.Adopt(now, name, Ms(0), Ms(0));
        running_[number].events = Fd(open((path + "/cgroup.events").c_str(), O_RDONLY | O_CLOEXEC));
        Log(Told(name) + ": its folder is lost");
        core_.OnKill(now, name);
      }
    }
  }
}

void Server::OnAnswer(Time now, uint64_t number, const Account& account) {
  Running& running = running_.at(number);
  dying_.push_back(running.asker.TakePidfd());
  running.asker = Asker();
  const auto job = core_.jobs().find(number);
  if (job == core_.jobs().end()) return;
  running.account = std::make_unique<Account>(account);
  Asked asked{options_.agent_uid, job->second.name.uid, job->second.who, false,
              ReadFile("/etc/shells", 1 << 16)};
  asked.nologin = access("/etc/nologin", F_OK) == 0 || access("/run/nologin", F_OK) == 0;
  errno = account.error;
  if (account.error != 0) {
    return core_.OnFailed(now, number, Stage::kAccount, account.error,
                          Because("look up " + job->second.who));
  }
  std::string why;
  if (options_.policy.strict_map && asked.peer == UINT32_MAX) {
    asked.accounts = ReadRootsFile("/etc/dtrain/accounts", &why);
  }
  if (why.empty()) why = Decide(options_.policy, account, asked);
  if (!why.empty()) return core_.OnFailed(now, number, Stage::kPolicy, EACCES, why);
  core_.OnAccount(now, number, account.uid);
}

std::string Server::Prepare(const SpawnerCore::Job& job, Running* running) {
  const std::string folder = FolderOf(job.name), cgroup = CgroupOf(options_.jobs, job.name);
  if (mkdir(folder.c_str(), 0700) != 0) return Because("make " + folder);
  if (!WriteFile(folder + "/lease", Format("%u %u\n", static_cast<unsigned>(job.lease.count()),
                                           static_cast<unsigned>(job.grace.count()))) ||
      chown(folder.c_str(), 0, options_.agent_gid) != 0 || chmod(folder.c_str(), 0710) != 0) {
    return Because("write to " + folder);
  }
  const Fd link = ListenIn(folder, options_.agent_gid);
  if (!link) return Because("listen in " + folder);
  const Fd lease = MakeLease(job);
  auto [reader, writer] = Pipe(O_NONBLOCK);
  if (!lease || !reader) return Because("make the descriptors of a shepherd");
  if (!MakeCgroup(cgroup, job.name.uid, running->account->gid) ||
      !LimitJob(cgroup, options_.policy.limits))
    return Because("make the cgroup " + cgroup);
  running->events = Fd(open((cgroup + "/cgroup.events").c_str(), O_RDONLY | O_CLOEXEC));
  const Fd into(open((cgroup + "/shepherd").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!running->events || !into) return Because("open the cgroup " + cgroup);
  const Start start{*running->account, options_.shepherd, into.get(),    writer.get(),
                    link.get(),        lease.get(),       options_.files};
  if (!StartShepherd(start, &running->shepherd, &running->report))
    return Because("fork into " + cgroup);
  running->words = std::move(reader);
  return "";
}

Fd Server::MakeLease(const SpawnerCore::Job& job) const {
  const std::string text =
      Format("job %s\nattempt %u\nlease_ms %lld\ngrace_ms %lld\nagent_uid %u\nagent_gid %u\n",
             job.name.job, job.name.attempt, static_cast<long long>(job.lease.count()),
             static_cast<long long>(job.grace.count()), options_.agent_uid, options_.agent_gid);
  Fd fd(memfd_create("dtrain-lease", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const bool done =
      write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
      lseek(fd.get(), 0, SEEK_SET) == 0 &&
      fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) == 0;
  return done ? std::move(fd) : Fd();
}

void Server::Carry(Time now, const SpawnerCore::Action& action) {
  using Action = SpawnerCore::Action;
  const Name& name = action.job.name;
  const uint64_t number = action.job.number;
  const std::string cgroup = CgroupOf(options_.jobs, name);
  Running& running = running_[number];
  switch (action.kind) {
    case Action::kAsk:
      if (!running.asker.Start(name.uid, action.job.who, options_.policy)) {
        core_.OnFailed(now, number, Stage::kPrepare, errno, Because("fork"));
      }
      break;
    case Action::kDropAsker:
      if (Fd pidfd = running.asker.TakePidfd()) {
        KillChild(pidfd);
        dying_.push_back(std::move(pidfd));
      }
      break;
    case Action::kStart: {
      const std::string why = Prepare(action.job, &running);
      if (!why.empty()) core_.OnFailed(now, number, Stage::kPrepare, errno, why);
      break;
    }
    case Action::kRefuse:
      used_.erase(std::remove(used_.begin(), used_.end(), running.cookie), used_.end());
      Refuse(action.job.tag, action.stage, action.error, Told(name) + ": " + action.words);
      break;
    case Action::kSpawned: {
      Spawned answer;
      answer.header.tag = action.job.tag;
      answer.name = name;
      Put(running.account->name, answer.account);
      running.account.reset();
      PutPaths(name, answer.link, answer.cgroup);
      Log(Told(name) + ": runs");
      Send(answer, {running.shepherd.get(), running.words.get()});
      running.words = Fd();
      Look(now, number);
      break;
    }
    case Action::kKill:
      if (!KillCgroup(cgroup) && errno != ENOENT && action.job.since + SpawnerCore::kAgain > now) {
        Log(Because("kill " + cgroup));
      }
      running.report = Fd();
      Look(now, number);
      break;
    case Action::kRemove:
      if (RemoveCgroup(cgroup)) {
        RemoveFolder(FolderOf(name));
        core_.OnRemoved(now, number);
      }
      break;
    case Action::kUnkillable: {
      Unkillable event;
      event.name = name;
      for (const uint32_t pid : PidsIn(cgroup)) event.pids[event.count++] = pid;
      Log(Told(name) +
          Format(": %u processes outlive SIGKILL, pid %u first", event.count, event.pids[0]));
      Send(event);
      break;
    }
    case Action::kEnded: {
      if (!running.reaped && running.shepherd) {
        running.reaped = Reap(running.shepherd, &running.code, &running.signal);
      }
      Ended event;
      event.name = name;
      event.exit_code = running.code;
      event.signal = running.signal;
      Log(Told(name) + Format(": has ended; its shepherd with code %d, signal %d", running.code,
                              running.signal));
      Send(event);
      break;
    }
    case Action::kGone:
      if (running.shepherd && !running.reaped) dying_.push_back(std::move(running.shepherd));
      running_.erase(number);
      break;
  }
}

std::string Server::FolderOf(const Name& name) const {
  return options_.run_dir + Format("/jobs/%u.%s.%u", name.uid, name.job, name.attempt);
}

}  // namespace dtrain::spawner
