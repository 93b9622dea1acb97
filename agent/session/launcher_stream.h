// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "common/link/link_core.h"
#include "common/loop/loop.h"
#include "common/rpc/rpc_carrier.h"
#include "dtrain/v1/agent.pb.h"

namespace dtrain::session {

// The agent's end of a session's stream to its launcher, and of channel 0 on it. Frames of channel
// 1 are handed over as they are. The channel outlives the stream: what was said while no stream was
// there goes out on the next. Knows nothing of the job. Loop thread.
class LauncherStream {
 public:
  using Stream = rpc::ServerCarrier;
  // Each but `next_job_frame` and `job_frames_first` may destroy this.
  struct Handlers {
    absl::AnyInvocable<void(const v1::SessionRequest& request)> on_request;  // of channel 0
    absl::AnyInvocable<void()> on_heard;  // a frame of it that completes no message
    // An error: the launcher broke a rule.
    absl::AnyInvocable<absl::Status(link::Frame frame)> on_job_frame;
    absl::AnyInvocable<std::optional<link::Frame>()> next_job_frame;
    // They go before what is said on channel 0, which may be that no more will come.
    absl::AnyInvocable<bool()> job_frames_first;
    absl::AnyInvocable<void()> on_closed;  // the stream has ended
    absl::AnyInvocable<void(absl::Status why)> on_broke;
  };

  LauncherStream(loop::Loop& loop, Handlers handlers);
  ~LauncherStream();
  LauncherStream(const LauncherStream&) = delete;
  LauncherStream& operator=(const LauncherStream&) = delete;

  // From now on this stream counts, and none before it.
  void Listen(std::shared_ptr<Stream> stream);
  // The Hello that came on it: says how far the launcher is on both channels.
  void Greet(const v1::Hello& hello) { greeting_ = hello; }
  const v1::Hello& greeting() const { return greeting_; }
  // Another launcher has come: nothing that was said counts any more. Before Open.
  void BeginAnew();
  // Answers it. An error: the launcher broke a rule.
  absl::Status Open();
  // Of the stream that counts.
  bool is(const Stream* stream) const { return stream_ != nullptr && stream_.get() == stream; }
  // The stream has ended: the channel waits for the next.
  void Close();
  // Ends the stream, if there is one, and lets go of it.
  void Finish(absl::Status status);

  void Send(const v1::SessionEvent& event);
  // Only the newest counts, and none is kept.
  void SendSample(const v1::GpuStates& gpus);
  // The shepherd's end of channel 1.
  void SendAttached(const v1::Party& shepherd);
  // There may be a frame to send.
  void Pump();

 private:
  std::optional<link::Frame> Next();
  void OnFrame(link::Frame frame);
  absl::Status OnAgentFrame(const link::Frame& frame);

  loop::Loop& loop_;
  // Others may destroy us while one of them runs.
  const std::shared_ptr<Handlers> handlers_;
  std::shared_ptr<Stream> stream_;      // null: its launcher is yet to come back
  v1::Hello greeting_;                  // of that stream
  std::optional<link::LinkCore> link_;  // always; another for another launcher
  loop::Timer link_due_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dtrain::session
