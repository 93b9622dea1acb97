// SPDX-License-Identifier: Apache-2.0
// What dtrain-agent and dtrain-spawner say to each other on RUN-DIR/agent.sock: SOCK_SEQPACKET, a
// struct of this file per packet, in the machine's byte order. RUN-DIR is /run/dtrain-spawner
// unless --run-dir says otherwise.
//
// The spawner serves one connection at a time, of the agent's user; another is closed. Each request
// has one answer with its tag (List: one or more), maybe after those to later requests, and events
// come in between. A request has exactly the size of its struct. Text is padded with zero bytes, of
// which there is at least one. What breaks these rules is refused as Stage::kRequest, and
// kMostBreaches of them in a row end the connection, as do an empty packet and an agent that leaves
// hundreds of KiB of answers unread. Jobs outlive connections: a new agent learns of them by List.
// What ended meanwhile it sees only by their absence.
//
// A job's shepherd finds: fds 0 and 1, /dev/null; 2, a pipe (non-blocking) whose other end the
// agent has; 3, link.sock, listening, to which only root and the agent's group can connect, and
// where SO_PEERCRED tells them uid 0; 4, a sealed memfd with the lines "job ID", "attempt N",
// "lease_ms N", "grace_ms N", "agent_uid N" and "agent_gid N". argv is {PROGRAM, "shepherd"}; the
// environment HOME, USER, LOGNAME, SHELL, PATH, maybe LANG. The path of link.sock may be too long
// for an address: open its folder with O_PATH|O_DIRECTORY, and connect to
// /proc/self/fd/N/link.sock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace dtrain::spawner {

inline constexpr uint16_t kVersion = 1;
inline constexpr size_t kLongestPacket = 16 << 10;
inline constexpr int kMostBreaches = 16;
inline constexpr uint32_t kLongestTime = 7u * 24 * 3600 * 1000;  // ms, of leases and graces

enum class Type : uint16_t {
  kSpawn = 1,  // SpawnRequest        -> Spawned, when the program runs, or Refused
  kKill = 2,   // KillRequest         -> Done: it is being killed, Ended follows; or Refused
  kAlive = 3,  // Header; each 5 s    -> Done: the time of all jobs starts again
  kList = 4,   // Header              -> Jobs, the last of them with more == 0
  kNonce = 5,  // not yet; 6 to 31 are kept for claims and grants
  kRefused = 64,
  kSpawned = 65,
  kDone = 66,  // Header
  kJobs = 67,
  kEnded = 96,       // event: nothing of the job is left
  kUnkillable = 97,  // event: SIGKILL has not ended it for a minute, but is still tried
};

struct Header {
  uint16_t version = kVersion;
  Type type{};
  uint32_t tag = 0;  // the requester's; 0 in events, and in answers to what has no header
};

// Of a job on this node. `job`: 1 to 64 of A-Z a-z 0-9 _ -
struct Name {
  char job[68] = {};
  uint32_t uid = 0;
  uint32_t attempt = 0;
};

enum class Proof : uint32_t {
  kConnection = 1,  // one fd is passed: the user's connection, as accept() returned it
  kAccount = 2,     // none is: by the agent's word, while trust-agent-tls = yes
};

// kConnection: a connected AF_UNIX, SOCK_STREAM socket whose own end has a name and whose peer has
// none and is there; who it is comes from SO_PEERCRED. It counts for one Spawn, unless that is
// refused: the spawner remembers the last 4,096.
struct SpawnRequest {
  Header header{kVersion, Type::kSpawn};
  char job[68] = {};
  uint32_t attempt = 0;
  uint32_t lease_ms = 0, grace_ms = 0;  // at most kLongestTime
  Proof proof{};
  uint32_t none = 0;    // must be 0
  uint64_t memory = 0;  // not yet: must be 0
  char account[64] =
      {};  // kAccount: 1 to 63 of A-Z a-z 0-9 . _ - @ +, the first no . or -. Else empty
};

struct KillRequest {
  Header header{kVersion, Type::kKill};
  Name name;
};

// What was being done when a job was refused.
enum class Stage : uint32_t {
  kRequest = 1,  // against the rules: counts towards kMostBreaches
  kProof = 2,    // the connection shows nobody, has shown somebody before (counts), or has ended
  kBusy = 3,     // a cap is reached, or a job of this name is there
  kUnknown = 4,  // Kill: there is no such job
  kAccount = 5,  // the look-up
  kPolicy = 6,   // this user may not: spawner.conf
  kPrepare = 7,  // folder, socket, cgroups, fork
  kStart = 8,    // session, limits, descriptors of the child
  kBecome = 9,   // the change of user
  kExec = 10,    // the program
  kTime = 11,    // took too long
  kKilled = 12,  // by Kill, before it ran
};

struct Refused {
  Header header{kVersion, Type::kRefused};
  Stage stage{};
  int32_t error = 0;     // errno or 0
  char words[448] = {};  // printable ASCII
};

inline constexpr size_t kPathSize = 384;

// With two fds: the shepherd's pidfd, and the end to read of its stderr (non-blocking).
struct Spawned {
  Header header{kVersion, Type::kSpawned};
  Name name;
  char account[64] = {};
  char link[kPathSize] = {};    // of link.sock
  char cgroup[kPathSize] = {};  // has `shepherd` and `workers`
};

enum class State : uint32_t { kAsking = 1, kStarting = 2, kRunning = 3, kKilling = 4 };

struct JobEntry {
  Name name;  // uid is UINT32_MAX while kAsking by kAccount
  State state{};
  uint32_t lease_ms = 0, grace_ms = 0;  // 0 of jobs whose folder was lost
  uint64_t since_ms = 0;                // how long it has been in this state
  char link[kPathSize] = {};
  char cgroup[kPathSize] = {};
};

inline constexpr size_t kMostEntries = 16;

// Sent without the entries beyond `count`.
struct Jobs {
  Header header{kVersion, Type::kJobs};
  uint32_t count = 0;
  uint32_t more = 0;  // 1: another packet follows
  JobEntry entries[kMostEntries];
};

struct Ended {
  Header header{kVersion, Type::kEnded};
  Name name;
  int32_t exit_code = -1;  // of the shepherd; -1: not known, or by a signal
  int32_t signal = 0;      // which
};

inline constexpr size_t kMostPids = 64;

struct Unkillable {
  Header header{kVersion, Type::kUnkillable};
  Name name;
  uint32_t count = 0;
  uint32_t pids[kMostPids] = {};
};

// A request that has been checked; `spawn` or `kill` is of use.
struct Request {
  Header header;
  SpawnRequest spawn;
  KillRequest kill;
};

// Returns why it is against the rules; empty: it is not. `header` is set whenever there is one.
std::string Parse(std::string_view packet, size_t fds, Request* request);

bool IsPlainJob(std::string_view job);
bool IsPlainAccount(std::string_view account);
// Copies with zeroes behind; false: too long.
bool Put(std::string_view text, char* to, size_t size);
template <size_t N>
bool Put(std::string_view text, char (&to)[N]) {
  return Put(text, to, N);
}
// Printable ASCII, anything else as \xNN, cut at `most`.
std::string Escape(std::string_view text, size_t most = 400);

}  // namespace dtrain::spawner
