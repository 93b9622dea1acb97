// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/paths.h"

namespace dtrain::runtime {

// How a run of several ranks is set up, and how its PMI server behaves.
struct RanksOptions {
  std::optional<std::string> mapping;  // PMI_process_mapping
  std::string maxes = "kvsname_max=256 keylen_max=64 vallen_max=1024";
  std::map<std::string, std::string> environment;  // for all ranks
  // What to answer to a line instead of the right thing; nullopt for the right thing. An empty
  // text is no answer at all; "EOF" closes the connection.
  std::function<std::optional<std::string>(int rank, const std::string& line)> instead;
  bool rejoin = false;      // the server announces that a rank may join again after its goodbye
  std::map<int, int> ends;  // of ranks that are to end in another way than with exit code 0
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  std::chrono::seconds deadline{240};  // they go over many numbers, three tests on two cores
#else
  std::chrono::seconds deadline{60};
#endif
};

// `options`, for a test in which ranks end like this: an exit code, or minus the signal.
inline RanksOptions Ending(std::map<int, int> ends, RanksOptions options = {}) {
  options.ends = std::move(ends);
  return options;
}

// The files of /dev/shm that this process maps. Shared memory of ours has no name there, so that
// nothing is left of it however its processes end; and the folder is everybody's, so that what
// comes and goes in it says nothing about us.
inline std::vector<std::string> NamedSharedMemory() {
  const std::string build = std::filesystem::path(LibraryPath("x")).parent_path().parent_path();
  std::vector<std::string> named;
  std::ifstream maps("/proc/self/maps");
  EXPECT_TRUE(maps.is_open());
  for (std::string line; std::getline(maps, line);) {
    // The build may lie there, too.
    if (line.find("/dev/shm/") != line.npos && line.find(build) == line.npos) named.push_back(line);
  }
  return named;
}

// Of one that is to write its pid there. Never 0: that is the group of all tests, and their runner.
inline void KillRank(const std::atomic<pid_t>& pid) {
  while (pid.load() == 0) sched_yield();
  EXPECT_EQ(kill(pid.load(), SIGKILL), 0);
}

// How many expectations have failed in a rank, where this process sees it: also of one that is then
// killed, or leaves without a look at them.
class SharedCount {
 public:
  SharedCount() {
    void* page =
        mmap(nullptr, sizeof(Count), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(page, MAP_FAILED);
    if (page != MAP_FAILED) count_ = new (page) Count(0);
  }
  ~SharedCount() {
    if (count_ != nullptr) munmap(count_, sizeof(Count));
  }
  SharedCount(const SharedCount&) = delete;
  SharedCount& operator=(const SharedCount&) = delete;

  int Get() const { return count_ == nullptr ? 0 : count_->load(); }

  // In the rank. GoogleTest's own listener comes first: it writes the failure out.
  void CountFailures() {
    testing::UnitTest::GetInstance()->listeners().Append(new Listener(count_));
  }

 private:
  using Count = std::atomic<int>;
  static_assert(Count::is_always_lock_free);

  class Listener : public testing::EmptyTestEventListener {
   public:
    explicit Listener(Count* count) : count_(count) {}
    void OnTestPartResult(const testing::TestPartResult& result) override {
      if (result.failed() && count_ != nullptr) ++*count_;
    }

   private:
    Count* const count_;
  };

  Count* count_ = nullptr;
};

// Each rank is a fork of this process that runs `body(rank)`; this process is their PMI-1 server.
// A rank fails the test when an expectation fails in it, however it ends, or when it ends in
// another way than the options say: a crash, a sanitizer's report. A rank that is stopped is killed
// once all the others have ended; one that is alive at the deadline is killed and fails the test.
class Ranks {
 public:
  using Body = std::function<void(int rank)>;

  // How each rank ended: its exit code, or minus the signal.
  static std::vector<int> Run(int n, const Body& body, RanksOptions options = {}) {
    Ranks ranks(std::move(options));
    for (int r = 0; r < n; ++r) ranks.Start(r, n, body);
    ranks.Serve();
    std::vector<int> ends;
    for (int r = 0; r < static_cast<int>(ranks.ranks_.size()); ++r) {
      const int end = ranks.ranks_[static_cast<size_t>(r)].end;
      const auto expected = ranks.options_.ends.find(r);
      EXPECT_EQ(end, expected == ranks.options_.ends.end() ? 0 : expected->second)
          << "rank " << r << " ended with "
          << (end < 0 ? "signal " + std::to_string(-end) : "exit code " + std::to_string(end))
          << (end == kExpectationFailed ? ": an expectation failed in it" : "") << "; see rank "
          << r << "'s output";
      const int failures = ranks.ranks_[static_cast<size_t>(r)].failures->Get();
      if (failures > 0 && end != kExpectationFailed) {
        ADD_FAILURE() << failures << " expectations failed in rank " << r
                      << " before it ended with " << end << "; see its output";
      }
      ends.push_back(end);
    }
    return ends;
  }

  static constexpr int kExpectationFailed = 99;

 private:
  struct Rank {
    pid_t pid = -1;
    int pidfd = -1;
    int socket = -1;  // -1: closed
    std::string received;
    bool alive = true;
    int end = 0;
    std::shared_ptr<SharedCount> failures;
  };

  explicit Ranks(RanksOptions options) : options_(std::move(options)) {}

  void Start(int rank, int n, const Body& body) {
    int pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    std::fflush(nullptr);
    const auto failures = std::make_shared<SharedCount>();
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      failures->CountFailures();
      close(pair[0]);
      for (const Rank& other : ranks_) close(other.socket);
      setenv("PMI_FD", std::to_string(pair[1]).c_str(), 1);
      setenv("PMI_RANK", std::to_string(rank).c_str(), 1);
      setenv("PMI_SIZE", std::to_string(n).c_str(), 1);
      setenv("MPI_LOCALNRANKS", std::to_string(n).c_str(), 1);
      for (const auto& [name, value] : options_.environment) {
        setenv(name.c_str(), value.c_str(), 1);
      }
      body(rank);
      std::fflush(nullptr);
      // Not HasFailure: that of an earlier run would be this rank's, too.
      _exit(failures->Get() > 0 ? kExpectationFailed : 0);
    }
    close(pair[1]);
    Rank entry;
    entry.pid = pid;
    entry.pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
    entry.socket = pair[0];
    entry.failures = failures;
    // Where there are none (old-kernel), Serve looks for ends now and then.
    ASSERT_TRUE(entry.pidfd >= 0 || errno == ENOSYS);
    ranks_.push_back(entry);
  }

  void Serve() {
    const auto end = std::chrono::steady_clock::now() + options_.deadline;
    while (Alive() > 0) {
      std::vector<pollfd> entries;
      for (const Rank& rank : ranks_) {
        entries.push_back({rank.socket, POLLIN, 0});
        entries.push_back({rank.alive ? rank.pidfd : -1, POLLIN, 0});
      }
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
      if (left.count() <= 0) {
        ADD_FAILURE() << Alive() << " ranks were still running at the deadline";
        for (const Rank& rank : ranks_) kill(rank.pid, SIGKILL);
        for (Rank& rank : ranks_) Reap(rank, 0);
        return;
      }
      const bool told = ranks_.empty() || ranks_[0].pidfd >= 0;
      poll(entries.data(), entries.size(), told ? static_cast<int>(left.count()) : 10);
      for (size_t r = 0; r < ranks_.size(); ++r) {
        if (entries[2 * r].revents != 0) Read(static_cast<int>(r));
        if (!told || entries[2 * r + 1].revents != 0) Reap(ranks_[r], told ? 0 : WNOHANG);
      }
      KillStopped();
    }
  }

  size_t Alive() const {
    size_t n = 0;
    for (const Rank& rank : ranks_) n += rank.alive ? 1 : 0;
    return n;
  }

  static void Reap(Rank& rank, int flags) {
    int status = 0;
    if (!rank.alive || waitpid(rank.pid, &status, flags) != rank.pid) return;
    rank.alive = false;
    rank.end = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
    if (rank.pidfd >= 0) close(rank.pidfd);
  }

  // When nobody but stopped ranks is left, they have served their purpose.
  void KillStopped() {
    for (const Rank& rank : ranks_) {
      siginfo_t info{};
      if (rank.alive &&
          (waitid(P_PID, static_cast<id_t>(rank.pid), &info, WSTOPPED | WNOHANG | WNOWAIT) != 0 ||
           info.si_pid == 0)) {
        return;
      }
    }
    for (const Rank& rank : ranks_) {
      if (rank.alive) kill(rank.pid, SIGKILL);
    }
  }

  void Read(int r) {
    Rank& rank = ranks_[static_cast<size_t>(r)];
    char buffer[4096];
    const ssize_t n = recv(rank.socket, buffer, sizeof(buffer), MSG_DONTWAIT);
    if (n <= 0) return Close(rank);
    rank.received.append(buffer, static_cast<size_t>(n));
    for (size_t end; (end = rank.received.find('\n')) != std::string::npos;) {
      const std::string line = rank.received.substr(0, end);
      rank.received.erase(0, end + 1);
      EXPECT_LE(line.size() + 1, 1024u) << "PMI-1 lines are at most 1024 bytes long";
      Answer(r, line);
    }
  }

  static void Close(Rank& rank) {
    if (rank.socket >= 0) close(rank.socket);
    rank.socket = -1;
  }

  void Send(int r, const std::string& line) {
    const std::string bytes = line + "\n";
    send(ranks_[static_cast<size_t>(r)].socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }

  static std::string Field(const std::string& line, const std::string& key) {
    const size_t at = line.find(" " + key + "=");
    if (at == std::string::npos) return "";
    const size_t begin = at + key.size() + 2;
    return line.substr(begin, line.find(' ', begin) - begin);
  }

  void Answer(int r, const std::string& line) {
    if (options_.instead) {
      if (const auto text = options_.instead(r, line)) {
        if (*text == "EOF") return Close(ranks_[static_cast<size_t>(r)]);
        if (!text->empty()) Send(r, *text);
        return;
      }
    }
    if (line.starts_with("cmd=init ")) {
      Send(r, "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0");
    } else if (line == "cmd=get_maxes") {
      Send(r, "cmd=maxes " + options_.maxes);
    } else if (line == "cmd=get_my_kvsname") {
      Send(r, "cmd=my_kvsname kvsname=kvs_test_0");
    } else if (line.starts_with("cmd=put ")) {
      pending_[Field(line, "key")] = Field(line, "value");
      Send(r, "cmd=put_result rc=0 msg=success");
    } else if (line.starts_with("cmd=get ")) {
      Send(r, Get(Field(line, "key")));
    } else if (line == "cmd=barrier_in") {
      Barrier();
    } else if (line == "cmd=finalize") {
      Send(r, "cmd=finalize_ack");
    } else {
      ADD_FAILURE() << "rank " << r << " sent " << line;
    }
  }

  std::string Get(const std::string& key) const {
    if (key == "PMI_process_mapping" && options_.mapping) {
      return "cmd=get_result rc=0 msg=success value=" + *options_.mapping;
    }
    if (key == "dtrain_rejoin" && options_.rejoin) {
      return "cmd=get_result rc=0 msg=success value=1";
    }
    const auto found = table_.find(key);
    if (found == table_.end()) return "cmd=get_result rc=-1 msg=not_found value=unknown";
    return "cmd=get_result rc=0 msg=success value=" + found->second;
  }

  void Barrier() {
    if (++waiting_ < ranks_.size()) return;
    waiting_ = 0;
    table_ = pending_;
    for (size_t r = 0; r < ranks_.size(); ++r) Send(static_cast<int>(r), "cmd=barrier_out");
  }

  const RanksOptions options_;
  std::vector<Rank> ranks_;
  std::map<std::string, std::string> pending_, table_;  // puts show after the barrier
  size_t waiting_ = 0;
};

}  // namespace dtrain::runtime
