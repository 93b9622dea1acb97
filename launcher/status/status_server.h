// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/http/server.h"
#include "common/loop/loop.h"
#include "launcher/status/job_view.h"
#include "launcher/status/log_tails.h"

namespace dtrain::status {

// Answers for one job over HTTP: on a unix socket always, on a loopback port when asked for. Only
// reads. Loop thread.
class StatusServer {
 public:
  using ReadFacts = std::function<report::JobFacts()>;

  StatusServer(loop::Loop& loop, JobIdentity job, ReadFacts facts);
  ~StatusServer();
  StatusServer(const StatusServer&) = delete;
  StatusServer& operator=(const StatusServer&) = delete;

  // On this user's socket for the job; sockets that launchers left behind are removed first.
  absl::Status ListenUnix();
  // `where` is PORT, IP:PORT or [IP]:PORT. Returns what to tell the user: the URL, and the file
  // that holds the token, which goes away with this.
  absl::StatusOr<std::string> ListenTcp(const std::string& where);

  void WorkerStarted(uint32_t rank, uint32_t pid) { pids_[rank] = pid; }
  LogTails& logs() { return logs_; }
  // The job is over: readers of logs get what is left. Calls `done` when they have it, or a second
  // has passed.
  void Finish(loop::Task done);

 private:
  http::Response Answer(const http::Target& target);
  http::Response AnswerJob(const std::vector<std::string>& parts, const http::Target& target);
  http::Response AnswerLog(uint32_t rank, const http::Target& target);
  void CheckIdle();

  loop::Loop& loop_;
  const JobIdentity job_;
  ReadFacts facts_;
  Pids pids_;
  std::string token_file_;
  LogTails logs_;
  std::unique_ptr<http::Server> unix_;
  std::unique_ptr<http::Server> tcp_;
  loop::Timer patience_;
  loop::Task done_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dtrain::status
