// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/os/fd.h"
#include "common/os/process_tree.h"
#include "common/os/unique_fd.h"
#include "dtrain/v1/journal.pb.h"
#include "launcher/detached/job_folder.h"
#include "launcher/detached/jobs.h"
#include "launcher/detached/log_segments.h"
#include "launcher/journal/records.h"
#include "tests/support/paths.h"

namespace dtrain::history {

using Strings = std::vector<std::string>;

// A `dtrain` that was started, and what it has printed.
class Program {
 public:
  // `out_file`: a file that its stdout is instead of what is read here.
  Program(const Strings& args, const std::map<std::string, std::string>& variables,
          const char* out_file = nullptr) {
    int out[2];
    int err[2];
    EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(err, O_CLOEXEC), 0);
    pid_ = fork();
    if (pid_ == 0) {
      HideJobs();
      dup2(out_file == nullptr ? out[1] : open(out_file, O_WRONLY | O_CLOEXEC), 1);
      dup2(err[1], 2);
      std::vector<std::string> words = {ProgramPath("dtrain")};
      words.insert(words.end(), args.begin(), args.end());
      std::vector<char*> argv;
      for (std::string& word : words) argv.push_back(word.data());
      argv.push_back(nullptr);
      for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
      execv(argv[0], argv.data());
      _exit(99);
    }
    close(out[1]);
    close(err[1]);
    out_fd_ = os::UniqueFd(out[0]);
    err_fd_ = os::UniqueFd(err[0]);
  }
  ~Program() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Reads until it has printed that, on stdout or stderr. False: it ended, or the deadline came.
  bool Prints(const std::string& text) {
    const auto there = [&] { return absl::StrContains(out, text) || absl::StrContains(err, text); };
    while (!there() && Read()) {
    }
    return there();
  }
  // Reads until it has ended. Its exit code, 128 + the signal that killed it, or -1: the deadline
  // came.
  int Wait() {
    while (Read()) {
    }
    if (!ended()) return -1;
    int status = 0;
    waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  void Signal(int number) const { kill(pid_, number); }
  void CloseStdout() { out_fd_ = os::UniqueFd(); }

  std::string out;
  std::string err;

 private:
  // Those that root runs on this machine, which are found wherever XDG_RUNTIME_DIR points to.
  static void HideJobs() {
    if (geteuid() != 0 || unshare(CLONE_NEWNS) != 0) return;
    mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
    for (const char* place : {"/run/dtrain", "/run/user"}) {
      mount("none", place, "tmpfs", 0, nullptr);
    }
  }
  bool ended() const { return !out_fd_ && !err_fd_; }
  bool Read() {
    if (ended() || Clock::now() >= deadline_) return false;
    pollfd fds[2] = {{out_fd_ ? out_fd_.get() : -1, POLLIN, 0},
                     {err_fd_ ? err_fd_.get() : -1, POLLIN, 0}};
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - Clock::now());
    if (poll(fds, 2, static_cast<int>(left.count())) <= 0) return false;
    Take(fds[0], out_fd_, out);
    Take(fds[1], err_fd_, err);
    return !ended();
  }
  static void Take(const pollfd& ready, os::UniqueFd& fd, std::string& to) {
    if (ready.fd < 0 || ready.revents == 0) return;
    char bytes[65536];
    const ssize_t size = read(fd.get(), bytes, sizeof(bytes));
    if (size > 0) {
      to.append(bytes, static_cast<size_t>(size));
    } else {
      fd = os::UniqueFd();
    }
  }

  pid_t pid_ = 0;
  os::UniqueFd out_fd_;
  os::UniqueFd err_fd_;
  TimePoint deadline_ = Clock::now() + std::chrono::seconds(20);
};

// A state folder of its own with jobs in it.
class JobsTest : public testing::Test {
 protected:
  JobsTest() {
    char path[] = "/tmp/dtrain-history-XXXXXX";
    EXPECT_NE(mkdtemp(path), nullptr);
    dir_ = path;
    for (const char* name : {"/state", "/run", "/work"}) {
      std::filesystem::create_directory(dir_ + name);
      chmod((dir_ + name).c_str(), 0700);
    }
    jobs_.emplace(dir_ + "/state/dtrain");
  }
  ~JobsTest() override { std::filesystem::remove_all(dir_); }

  std::map<std::string, std::string> Variables() const {
    return {{"XDG_STATE_HOME", dir_ + "/state"},
            {"XDG_RUNTIME_DIR", dir_ + "/run"},
            {"HOME", dir_},
            {"TZ", "UTC"}};
  }
  Program Start(const Strings& args) const { return Program(args, Variables()); }
  struct Ran {
    int code = -1;
    std::string out;
    std::string err;
  };
  Ran Run(const Strings& args, const char* out_file = nullptr) const {
    Program program(args, Variables(), out_file);
    const int code = program.Wait();
    return {code, program.out, program.err};
  }

  detached::JobFolder Accept(const std::string& id, const std::string& name = "",
                             const Strings& words = {"launch", "-np", "2", "python3", "t.py"},
                             const std::string& directory = "/work") {
    v1::Spec spec;
    spec.set_job_id(id);
    spec.set_name(name);
    for (const std::string& word : words) spec.add_argv(word);
    spec.set_working_directory(dir_ + directory);
    spec.mutable_accepted_by()->set_host("login1");
    spec.mutable_accepted_by()->set_unix_nanos(1764205000'000000000);
    const auto accepted = jobs_->Accept(spec);
    EXPECT_TRUE(accepted.ok()) << accepted.status();
    return accepted.ok() ? accepted->folder : detached::JobFolder(dir_);
  }
  // As a launcher that runs in this process.
  static os::FileLock Hold(const detached::JobFolder& job, uint64_t generation = 3) {
    v1::Launcher self;
    self.set_generation(generation);
    self.set_host("login2");
    self.set_pid(4242);
    self.set_boot_id("another boot");
    self.set_unix_nanos(1764205001'000000000);
    auto lock = job.Lock(self);
    EXPECT_TRUE(lock.ok()) << lock.status();
    return *std::move(lock);
  }
  static void Append(const detached::JobFolder& job,
                     const std::vector<v1::JournalRecord>& records) {
    auto opened = job.OpenJournal();
    ASSERT_TRUE(opened.ok()) << opened.status();
    std::string frames;
    for (const v1::JournalRecord& record : records) {
      ASSERT_TRUE(journal::AppendRecord(record, frames.empty(), &frames).ok());
    }
    const absl::Status written = opened->first.Commit(frames);
    ASSERT_TRUE(written.ok()) << written;
  }
  // The first attempt runs, with so many ranks on two hosts.
  static void Runs(const detached::JobFolder& job, uint32_t attempt = 0, uint32_t ranks = 2) {
    std::vector<v1::JournalRecord> records;
    if (attempt == 0) {
      v1::Launcher& taken = *records.emplace_back().mutable_generation_taken();
      taken.set_generation(3);
      taken.set_host("login2");
    }
    v1::AttemptBegins& begins = *records.emplace_back().mutable_attempt_begins();
    begins.set_attempt(attempt);
    begins.set_generation(3);
    begins.add_hosts("node1");
    begins.add_hosts("node2");
    v1::AttemptRuns& runs = *records.emplace_back().mutable_attempt_runs();
    runs.set_attempt(attempt);
    runs.set_world_size(ranks);
    for (uint32_t node = 0; node < 2; ++node) {
      v1::RunningNode& running = *runs.add_nodes();
      running.set_node(node);
      for (uint32_t rank = node; rank < ranks; rank += 2) {
        running.add_workers()->set_rank(rank);
      }
    }
    Append(job, records);
  }
  static void Restarts(const detached::JobFolder& job, uint32_t attempt, const std::string& cause) {
    v1::JournalRecord record;
    record.mutable_restart_decided()->set_attempt(attempt);
    record.mutable_restart_decided()->set_cause(cause);
    Append(job, {record});
  }
  // Appended to what is there.
  static void Write(const detached::JobFolder& job, uint32_t rank, const std::string& text,
                    bool is_stderr = false, uint32_t attempt = 0) {
    const std::string folder = job.LogFolder(attempt);
    std::filesystem::create_directory(folder);
    std::ofstream(folder + "/" + detached::SegmentName({Rank(rank), is_stderr}, 0),
                  std::ios::binary | std::ios::app)
        << text;
  }
  // As JSON has it.
  static constexpr char kReport[] =
      "\n  \"report\": \"dtrain: rank 1 on node2 (pid 11) exited with code 7 after 4.50 s; the end "
      "of "
      "its stderr:\\n  | it went wrong\\ndtrain: 2 attempts:\\n  attempt 0, ran 2.50 s: rank 0 "
      "on "
      "node1 exited with code 3\\n  attempt 1, ran 4.50 s: rank 1 on node2 exited with code "
      "7\\ndtrain: exit code 7\",";
  static std::string Summary(int exit_code) {
    return absl::StrCat(R"({"schema": 1, "exit_code": )", exit_code, R"(, "world_size": 2,
  "verdict": {"kind": ")",
                        exit_code == 0 ? "success" : "worker", R"(", "message": "",
              "first_failed_rank": 1, "secondary_deaths": 1},)",
                        exit_code == 0 ? "" : kReport,
                        R"(
  "nodes": [{"host": "node1"}, {"host": "node2"}],
  "attempts": [{"attempt": 0, "exit_code": 3, "cause": "rank 0 on node1 exited with code 3",
                "ran_s": 2.5}, {"attempt": 1, "exit_code": )",
                        exit_code, R"(,
                "cause": "rank 1 on node2 exited with code 7", "ran_s": 4.5}],
  "ranks": [{"rank": 0, "node": 0, "ended": true, "pid": 10, "signal": 15, "told_to_stop": true,
             "seconds": 4.5},
            {"rank": 1, "node": 1, "ended": true, "pid": 11, "exit_code": )",
                        exit_code, R"(,
             "seconds": 4.5, "stderr_tail": "it went wrong\n"}]})");
  }
  static void End(const detached::JobFolder& job, int exit_code) {
    const absl::Status written = job.WriteSummary(Summary(exit_code));
    ASSERT_TRUE(written.ok()) << written;
    std::filesystem::remove(job.path() + "/journal");
  }

  std::string dir_;
  std::optional<detached::Jobs> jobs_;
};

}  // namespace dtrain::history
