// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>
#include <sys/resource.h>

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "spawner/asker.h"
#include "spawner/children.h"
#include "spawner/core.h"
#include "spawner/policy.h"
#include "spawner/protocol.h"

namespace dtrain::spawner {

struct Options {
  std::string run_dir = "/run/dtrain-spawner", config, agent_user = "dtrain", shepherd;
  Ms patience = SpawnerCore::kPatience;
  bool limit = false;  // StopLimiting comes before the next one
  Policy policy;
  uid_t agent_uid = 0;
  gid_t agent_gid = 0;
  rlimit files{};    // for jobs
  std::string jobs;  // the cgroup
};

// Of a job, for messages.
std::string Told(const Name& name);

// The one loop: the agent's connection, askers, starters, cgroups. It waits in poll alone.
class Server {
 public:
  Server(Options options, Fd listener);
  // Jobs of a spawner before this one.
  void Adopt();
  void Poll();

 private:
  struct Running {  // what a job has here; each may be missing
    Asker asker;
    std::unique_ptr<Account> account;  // until it runs
    Fd shepherd, report, words, events;
    uint64_t cookie = 0;  // of the connection that showed whose it is
    bool reaped = false;
    int code = -1, signal = 0;
  };

  void Accept();
  void Receive(Time now);
  void Disconnect();
  void OnPacket(Time now, std::string_view packet, const std::vector<int>& fds);
  void OnSpawn(Time now, const SpawnRequest& request, const std::vector<int>& fds);
  // Who is connected; UINT32_MAX: `why` and `breach` say what is wrong.
  uid_t Prove(int fd, uint64_t* cookie, std::string* why, bool* breach) const;
  void OnAnswer(Time now, uint64_t number, const Account& account);
  std::string Prepare(const SpawnerCore::Job& job, Running* running);
  Fd MakeLease(const SpawnerCore::Job& job) const;
  void Carry(Time now, const SpawnerCore::Action& action);
  void Look(Time now, uint64_t number);  // whether anything of it runs
  void SendJobs(Time now, uint32_t tag);
  void Send(const void* packet, size_t size, std::vector<int> fds = {});
  template <typename Packet>
  void Send(const Packet& packet, std::vector<int> fds = {}) {
    Send(&packet, sizeof(packet), std::move(fds));
  }
  void Refuse(uint32_t tag, Stage stage, int error, const std::string& words, bool breach = false);
  void Audit(Time now, const std::string& line);
  std::string FolderOf(const Name& name) const;
  void PutPaths(const Name& name, char (&link)[kPathSize], char (&cgroup)[kPathSize]) const;

  const Options options_;
  const Fd listener_;
  SpawnerCore core_;
  Fd agent_;
  std::string broken_;  // why its connection is about to end; empty: it is not
  std::map<uint64_t, Running> running_;
  std::vector<Fd> given_;      // by agents, to be closed
  std::vector<Fd> dying_;      // killed, or about to end; not reaped
  std::deque<uint64_t> used_;  // cookies of the last 4,096 connections that have started a job
  Time audited_since_;
  int audited_ = 0;
};

}  // namespace dtrain::spawner
