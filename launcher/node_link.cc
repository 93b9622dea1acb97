// SPDX-License-Identifier: Apache-2.0
#include "launcher/node_link.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/link/party.h"

namespace dtrain {
namespace {

// gRPC may see the end of the stream before the transport has learned why it ended (the exit code
// and last words of an ssh process). So long we wait for the better message.
constexpr Duration kReasonWait = std::chrono::milliseconds(200);
// A connection that has stood for so long since the last try has not failed by that: the first try
// after its end comes at once, as it may break without the agent. An agent that is started anew is
// back in about a second.
constexpr Duration kStood = std::chrono::seconds(5);
// At least: with a short lease the pauses between tries must not outlast it.
constexpr int kTriesPerLease = 8;
// For an answer that an agent has at hand; a driver that hangs may take a second of it.
constexpr Duration kBootPatience = std::chrono::seconds(3);
// The agent hears at least this often how far its logs are taken: its spool may then shrink.
constexpr uint64_t kReportEvery = 1 << 20;

link::LinkCore::Options OptionsOf(link::Channel channel, link::KeptBytes& kept) {
  const bool job = channel == link::Channel::kJob;
  link::LinkCore::Options options;
  options.channel = channel;
  options.epoch = link::RandomEpoch();
  options.out = job ? link::kToShepherd : link::kOfAgent;
  options.in = job ? link::kToLauncher : link::kOfAgent;
  options.forgets = !job;  // agents come and go
  options.budget = &kept;
  return options;
}

}  // namespace

NodeLink::NodeLink(loop::Loop& loop, transport::Transport& transport, transport::Redials& redials,
                   link::KeptBytes& kept, const transport::Target& target, Handlers handlers,
                   std::optional<Takeover> takeover)
    : loop_(loop),
      transport_(transport),
      redials_(redials),
      target_(target),
      handlers_(std::move(handlers)),
      reason_wait_(loop),
      due_(loop),
      retry_(loop),
      drop_spare_(loop),
      give_up_(loop) {
  agent_.emplace(OptionsOf(link::Channel::kAgent, kept));
  job_.emplace(OptionsOf(link::Channel::kJob, kept));
  if (takeover) {
    hello_ = std::move(takeover->hello);
    boot_id_ = std::move(takeover->boot_id);
    resumable_ = resuming_ = takes_over_ = true;
  }
  Connect();
}

NodeLink::~NodeLink() = default;

void NodeLink::Connect() {
  transport::Callbacks callbacks;
  callbacks.on_phase = [this](transport::Phase phase) {
    if (!resuming_) handlers_.on_phase(phase);
  };
  callbacks.on_ready = [this](os::UniqueFd stream) { Open(std::move(stream)); };
  callbacks.on_failed = [this](absl::Status status) {
    if (resuming_) {
      Lost(std::move(status));
    } else {
      handlers_.on_closed(std::move(status));
    }
  };
  transport::Target target = target_;
  target.resume = resuming_;
  target.keep = target_.keep && !(resuming_ && elsewhere_);
  connection_ = transport_.Connect(target, std::move(callbacks));
}

void NodeLink::DialAnew() {
  if (!MayResume() || (spare_ != nullptr && spare_answered_)) return;
  // Without room for another, the one under way goes on.
  transport::Redials::Place place = redials_.TryEnter();
  if (!place) return;
  DropSpare();
  spare_place_ = std::move(place);
  transport::Callbacks callbacks;
  callbacks.on_phase = [this](transport::Phase phase) {
    spare_answered_ = spare_answered_ || phase != transport::Phase::kConnecting;
  };
  callbacks.on_ready = [this](os::UniqueFd stream) {
    DropStream();
    reason_wait_.Cancel();
    retry_.Cancel();
    boot_asked_.reset();
    connection_ = std::move(spare_);
    place_ = std::move(spare_place_);
    resuming_ = true;
    Open(std::move(stream));
  };
  // Before it stood. Afterwards it is the connection, whose stream tells its end.
  callbacks.on_failed = [this](absl::Status) {
    drop_spare_.At(loop_.Now(), [this] { DropSpare(); });
  };
  transport::Target target = target_;
  target.resume = true;
  target.keep = target_.keep && !elsewhere_;
  spare_ = transport_.Connect(target, std::move(callbacks));
}

void NodeLink::DropSpare() {
  drop_spare_.Cancel();
  spare_.reset();
  spare_place_ = {};
  spare_answered_ = false;
}

void NodeLink::DropStream() {
  if (logs_.has_value() && !logs_over_ && handlers_.on_logs_cut) handlers_.on_logs_cut();
  logs_.reset();
  session_.reset();
  stub_.reset();
  channel_.reset();
  connection_.reset();
  due_.Cancel();
  if (agent_) agent_->Close();
  if (job_) job_->Close();
}

void NodeLink::Open(os::UniqueFd stream) {
  if (!grpc_) grpc_.emplace();
  channel_ = rpc::MakeChannel(std::move(stream));
  stub_ = v1::Agent::NewStub(channel_);
  resuming_ ? Greet() : handlers_.on_connected(connection_->address());
}

void NodeLink::Closed(absl::Status status) {
  if (given_up_) return;
  due_.Cancel();
  agent_->Close();
  job_->Close();
  if (absl::IsPermissionDenied(status) || absl::IsUnauthenticated(status)) {
    return handlers_.on_closed(transport::NotAuthorisedError(status.message()));
  }
  if (absl::IsNotFound(status) && resuming_ && !boot_id_.empty()) {
    return AskForBoot(std::move(status));
  }
  // The agent's own words are the best there are.
  if (!absl::IsUnavailable(status)) {
    handlers_.on_closed(std::move(status));
    return;
  }
  // A bridge cannot know which of a node's agents has the job: where one does not, or is not there,
  // the other is asked next.
  if (resuming_) elsewhere_ = !elsewhere_;
  auto report = [this, status] {
    absl::Status reason = connection_->CloseReason();
    if (reason.ok()) {
      reason = absl::UnavailableError("the connection to the agent was closed by the other side");
    }
    Lost(std::move(reason));
  };
  // Whoever connects again needs no better message than that.
  if (connection_->CloseReason().ok() && !resumable_) {
    reason_wait_.After(kReasonWait, report);
  } else {
    report();
  }
}

// An agent that came back without the job cannot tell whether its machine did, too: what it knew
// lay in memory.
void NodeLink::AskForBoot(absl::Status gone) {
  boot_asked_.emplace(
      loop_, v1::NodeStatusRequest(), kBootPatience,
      [this](auto* context, auto* request, auto* report, auto* reactor) {
        stub_->async()->NodeStatus(context, request, report, reactor);
      },
      [this, gone = std::move(gone)](absl::StatusOr<v1::NodeReport> report) {
        const bool other = report.ok() && !report->inventory().boot_id().empty() &&
                           report->inventory().boot_id() != boot_id_;
        handlers_.on_closed(
            other ? transport::StartedAnewError("the machine was rebooted: its boot id has "
                                                "changed, and the workers are gone")
                  : gone);
      });
}

void NodeLink::Lost(absl::Status why) {
  // A certificate that was revoked does not become good again while we try.
  if (given_up_) return;
  if (!MayResume() || transport::IsNotAuthorised(why)) {
    handlers_.on_closed(std::move(why));
    return;
  }
  resuming_ = true;
  place_ = {};
  const TimePoint now = loop_.Now();
  tries_ = now > lost_at_ + kStood ? 0 : tries_ + 1;
  const TimePoint next = now + redials_.Pause(tries_, Lease() / kTriesPerLease);
  lost_at_ = next;
  // Posted at least: this is called by what is destroyed here.
  retry_.At(next, [this] {
    place_ = redials_.Enter([this] {
      DropStream();
      Connect();
    });
  });
}

void NodeLink::OpenLogs(const std::string& job_id, uint32_t attempt, uint32_t most_data) {
  logs_request_.emplace();
  logs_request_->set_job_id(job_id);
  logs_request_->set_attempt(attempt);
  logs_request_->set_most_data(most_data);
  // Else it is opened when the agent has answered.
  if (!resuming_) OpenLogStream();
}

void NodeLink::SetSafe(const v1::LogPosition& position) {
  LogProgress& progress = log_progress_[{position.rank(), position.stream()}];
  progress.safe = position.offset();
  progress.taken = std::max(progress.taken, position.offset());
  if (progress.safe - progress.reported >= kReportEvery) ReportTaken();
}

void NodeLink::AddTaken(std::vector<v1::LogPosition>& to) const {
  for (const auto& [key, progress] : log_progress_) {
    v1::LogPosition& at = to.emplace_back();
    at.set_rank(key.first);
    at.set_stream(key.second);
    at.set_offset(progress.taken);
  }
}

void NodeLink::OpenLogStream() {
  auto request = std::make_shared<v1::LogsRequest>(*logs_request_);
  for (auto& [key, progress] : log_progress_) {
    v1::LogPosition& from = *request->add_from();
    from.set_rank(key.first);
    from.set_stream(key.second);
    from.set_offset(progress.taken);
  }
  reader_waits_ = false;
  logs_.emplace(
      loop_,
      [this, request](auto* context, auto* reactor) {
        stub_->async()->Logs(context, request.get(), reactor);
      },
      [this](v1::LogChunk chunk) { OnLogChunk(std::move(chunk)); },
      [this](absl::Status status) {
        if (resumable_ && absl::IsUnavailable(status)) return;  // Closed comes, and a new stream
        logs_over_ = true;
        handlers_.on_logs_end(std::move(status));
      });
}

void NodeLink::OnLogChunk(v1::LogChunk chunk) {
  if (logs_over_) return;
  const LogKey key{chunk.rank(), chunk.stream()};
  LogProgress& progress = log_progress_[key];
  if (chunk.offset() != progress.taken) {
    logs_over_ = true;
    return handlers_.on_logs_end(absl::InternalError(
        absl::StrCat("its agent sent output of rank ", chunk.rank(), " from byte ", chunk.offset(),
                     " on where byte ", progress.taken, " was next")));
  }
  progress.taken += chunk.data().size();
  if (!safe_counts_) progress.safe = progress.taken;
  if (progress.safe - progress.reported >= kReportEvery) ReportTaken();
  ++unanswered_;
  reader_waits_ = true;
  handlers_.on_logs(std::move(chunk));
  CheckKept();
}

void NodeLink::NextLogs() {
  // Of a stream that broke there may be a chunk that nobody had room for yet.
  if (--unanswered_ > 0 || !logs_.has_value()) return;
  if (std::exchange(reader_waits_, false)) logs_->Next();
}

}  // namespace dtrain
