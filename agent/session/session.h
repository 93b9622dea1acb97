// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "agent/session/announcements.h"
#include "agent/session/holdings.h"
#include "agent/session/job_gpus.h"
#include "agent/session/joining.h"
#include "agent/session/launcher_stream.h"
#include "agent/session/log_relay.h"
#include "agent/session/reported_job.h"
#include "agent/session/session_core.h"
#include "agent/session/shepherd_channel.h"
#include "agent/session/surroundings.h"
#include "common/loop/loop.h"

namespace dtrain::session {

// To a launcher that has lost the job to the one of this Hello.
absl::Status AnothersNow(const v1::Hello& present);

// One launcher's session: carries out what SessionCore decides, and joins what it takes: the
// launcher's stream, the shepherd's channel, what the job has of the node. Loop thread.
class Session {
 public:
  using Stream = LauncherStream::Stream;

  // `on_ended` destroys the session. Once.
  Session(Surroundings surroundings, Owner owner, std::unique_ptr<ShepherdChannel> shepherd,
          std::shared_ptr<Stream> stream, loop::Task on_ended);
  // Of a job that an agent before us has started.
  Session(Surroundings surroundings, Owner owner, std::unique_ptr<ShepherdChannel> shepherd,
          v1::Account account, const v1::JobRecord& record, JobDirectory directory,
          loop::Task on_ended);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // The stream's first message, which somebody else has read.
  void Begin(const v1::Hello& hello);
  // The stream ended before it was handed over.
  void OnStreamClosed();
  bool CanResume(const v1::Hello& hello) const { return core_.CanResume(hello); }
  // Of one that can resume. ALREADY_EXISTS: another launcher has the job now.
  absl::Status CheckRank(const v1::Hello& hello) const;
  // Whichever had it before hears that it is another's now, if it is.
  void Resume(std::shared_ptr<Stream> stream, const v1::Hello& hello);

  const Owner& owner() const { return owner_; }
  // Its launcher has come, and has not started the job here yet.
  bool starting() const {
    return core_.state() == SessionState::kNew || core_.state() == SessionState::kJoined ||
           (core_.state() == SessionState::kRunning && !job_.has_part());
  }
  // Its launcher was let in and may have reserved something; nothing has begun here.
  bool joined() const { return core_.state() == SessionState::kJoined; }
  // It is, and nothing is about to begin.
  bool is_spare() const { return joined() && holdings_.is_spare(); }
  // joined(): gives back what it has reserved, and tells its launcher why.
  void Leave(absl::string_view why);
  bool Holds(const JobDirectory& directory) const { return holdings_.Holds(directory); }
  const v1::Hello& hello() const { return core_.hello(); }  // empty before the Hello
  // Its launcher is not connected and may come back.
  bool away() const { return core_.away(); }
  // `beside`: the session's stream on the same connection; may be null.
  void AttachLogs(std::shared_ptr<LogRelay::Writer> writer, const v1::LogsRequest& request,
                  const Stream* beside);

  // For others than the launcher.
  v1::JobOnNode Describe() const;
  // What anyone may know: that somebody has GPUs and cores here.
  v1::JobOnNode DescribeInName() const;
  LogRelay& logs() { return job_.logs(); }
  // Ends the job as its launcher would, who is told the message. False: it is over already.
  bool StopBy(std::string message);
  bool stop_asked() const { return stop_asked_; }  // by StopBy
  // Likewise, as this node is to go away: the launcher, which is told why, may go on without it.
  void EndAsNodeLeaves(std::string why);

 private:
  Session(Surroundings surroundings, Owner owner, SessionCore core,
          std::unique_ptr<ShepherdChannel> shepherd, loop::Task on_ended);
  // What is heard.
  LauncherStream::Handlers LauncherHandlers();
  ShepherdChannel::Handlers ShepherdHandlers();
  JobGpus::Handlers GpuHandlers();
  void OnRequest(const v1::SessionRequest& request);
  absl::Status OnJobFrame(link::Frame frame);
  // Whose it is, and since when.
  void SayWhose(v1::JobOnNode& job) const;
  // What the core decides.
  void Feed(const Event& event);
  void Do(Action& action);
  void Open();
  void Prepare();
  void PrepareToBeLeft();
  void ToShepherd(const v1::ShepherdRequest& request);
  void SayAgain();
  void Warn(const std::string& message);
  void Stop(absl::Status status);

  const Surroundings agent_;
  const Owner owner_;
  const int64_t since_unix_nanos_;
  SessionCore core_;
  loop::Task on_ended_;
  bool dropped_ = false;  // the start was: the shepherd gets nothing any more
  bool stop_asked_ = false;
  Holdings holdings_;
  const std::unique_ptr<ShepherdChannel> shepherd_;
  ReportedJob job_;
  Joining joining_;
  LauncherStream launcher_;
  Announcements announcements_;
  JobGpus gpus_;
  loop::Timer deadline_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dtrain::session
