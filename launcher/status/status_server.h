// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/http/server.h"
#include "common/loop/loop.h"
#include "common/view/columns.h"
#include "common/view/gpu_series.h"
#include "common/view/lateness.h"
#include "launcher/page/page.h"
#include "launcher/status/job_events.h"
#include "launcher/status/job_view.h"
#include "launcher/status/log_tails.h"

namespace dtrain::status {

// The page, as every server of ours gives it.
http::Response PageResponse(page::Shows shows);

// Answers for one job over HTTP, and shows it as a web page: on a unix socket always, on a loopback
// port when asked for. Only reads, but for /v1/jobs/{id}/detach on the unix socket. Loop thread.
class StatusServer {
 public:
  using ReadFacts = std::function<report::JobFacts()>;

  StatusServer(loop::Loop& loop, JobIdentity job, ReadFacts facts);
  ~StatusServer();
  StatusServer(const StatusServer&) = delete;
  StatusServer& operator=(const StatusServer&) = delete;

  // How a job goes on without us, when somebody who may ask on the unix socket asks for it.
  struct Detaching {
    // Calls back, perhaps later, with why it cannot.
    std::function<void(absl::AnyInvocable<void(absl::Status)> may)> ask;
    // Right after that: why it cannot, or it is done, and nothing is answered any more.
    std::function<absl::Status()> detach;
    loop::Task then;  // he has heard of it
  };
  // Before ListenUnix. Without it the job is a detached one already.
  void OnDetach(Detaching detaching) { detaching_ = std::move(detaching); }
  // On this user's socket for the job; sockets that launchers left behind are removed first.
  absl::Status ListenUnix();
  // `where` is PORT, IP:PORT or [IP]:PORT. Returns what to tell the user: the URL, and the file
  // that holds the token, which goes away with this.
  absl::StatusOr<std::string> ListenTcp(const std::string& where);

  // Before facts() are of it, and after the last one has ended.
  void AttemptBegins(uint32_t attempt);
  void AttemptEnded(const std::string& cause);
  void TakeGpus(const std::string& host, const v1::GpuStates& states) { gpus_.Take(host, states); }
  LogTails& logs() { return logs_; }
  // The job may have changed, by an event of that node or one of nobody's; that rank has ended.
  void Observe(std::optional<NodeId> of);
  void RankEnded(Rank rank);
  // The job is over: readers of logs get what is left. Calls `done` when they have it, or a second
  // has passed.
  void Finish(loop::Task done);

 private:
  http::Response Answer(const http::Target& target);
  void AnswerPost(const http::Target& target, http::Reply reply);
  http::Response Detach(const absl::Status& may);
  http::Response AnswerJob(const std::vector<std::string>& parts, const http::Target& target);
  http::Response AnswerLog(uint32_t rank, const http::Target& target);
  http::Response AnswerLogs(const http::Target& target);
  http::Response AnswerColumns(const http::Target& target);
  http::Response AnswerEvents(const http::Target& target);
  http::Response AnswerSeries(const http::Target& target);
  http::Response AnswerGpus(const http::Target& target);
  void SampleLater();
  void CheckIdle();

  loop::Loop& loop_;
  const JobIdentity job_;
  ReadFacts facts_;
  Detaching detaching_;
  bool is_detached_ = false;
  std::string token_file_;
  LogTails logs_;
  view::Columns columns_;
  JobEvents events_;
  EventFeeds event_feeds_;
  view::Lateness lateness_;
  view::GpuSeries gpus_;
  TimePoint sampled_;
  loop::Timer sample_;
  std::unique_ptr<http::Server> unix_;
  std::unique_ptr<http::Server> tcp_;
  loop::Timer patience_;
  loop::Timer questions_;
  loop::Task done_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dtrain::status
