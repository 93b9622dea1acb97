// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/campaign_core.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"
#include "common/base/text.h"
#include "launcher/job/outcome.h"
#include "rendezvous/barrier_core.h"

namespace dtrain::job {
namespace {

// Before hosts that are needed for a restart are dialled again.
constexpr Duration kJoinAgain = std::chrono::seconds(5);
// A host that has told it leaves may answer for so long, and would only lose the workers again.
constexpr Duration kLeavingTakes = std::chrono::seconds(15);
constexpr char kNotFreed[] = "not all of its processes and GPUs could be freed";

bool IsStop(int signal) {
  return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGPIPE;
}

// To what people want to know of a wait.
std::string Rounded(Duration wait) {
  using std::chrono::seconds;
  return FormatSeconds(wait < seconds(2) ? wait : std::chrono::round<seconds>(wait));
}

Verdict StoppedBy(int signal, const std::string& from) {
  return {.kind = Verdict::Kind::kSignal,
          .exit_code = kExitSignalBase + signal,
          .message = EndedBy(signal, from),
          .rank = {},
          .signal = signal};
}

// By an agent, whose host is in the text.
Verdict StoppedThere(const std::string& text) {
  return {.kind = Verdict::Kind::kNode,
          .exit_code = kExitTerminated,
          .message = text,
          .rank = {},
          .signal = 0};
}

// What --restart-on has to name.
std::string NotNamed(const char* cause) {
  return absl::StrCat("--restart-on does not name ", cause);
}

}  // namespace

CampaignCore::CampaignCore(CampaignOptions options, TimePoint now)
    : options_(std::move(options)),
      begin_(now),
      now_(now),
      backoff_(options_.backoff),
      hosts_(options_),
      scale_up_(options_.scale_up, options_.hosts.size()) {}

CampaignCore::CampaignCore(CampaignOptions options, const CampaignPast& past, TimePoint now)
    : options_(std::move(options)),
      begin_(now - past.age),
      now_(now),
      begun_(past.begun),
      attempt_(past.attempt),
      runs_since_(past.runs ? now - past.ran : kNever),
      backoff_(options_.backoff),
      stop_signal_(past.stop_signal),
      stop_from_(past.stop_from),
      hosts_(options_),
      scale_up_(options_.scale_up, options_.hosts.size()) {
  if (!past.scale_up.empty()) scales_up_ = EndAttempt{past.scale_up, past.back};
  for (const AttemptRecord& record : past.ended) {
    ended_.push_back(record);
    // The last one ran with these: a host that was lost before it had come back.
    if (past.pauses && ended_.size() == past.ended.size()) hosts_.OnRuns(past.seats);
    hosts_.Count(record);
    hosts_.Welcome(record);
    BackOff();
  }
  hosts_.SetLeftOut(past.left_out);
  seats_ = past.seats;
  if (!past.pauses) return;
  if (attempt_ > 0) join_by_ = now_ + past.wait + options_.join_timeout;
  Pause(now_ + past.wait);
}

std::vector<CampaignAction> CampaignCore::Begin() {
  if (begun_) return {};
  if (stop_signal_ != 0) {
    End(StoppedBy(stop_signal_, stop_from_));
  } else if (state_ == State::kAttempt) {
    Start();
  }
  return std::exchange(actions_, {});
}

std::vector<CampaignAction> CampaignCore::OnEvent(TimePoint now, const CampaignEvent& event) {
  if (state_ == State::kOver) return {};
  now_ = std::max(now_, now);
  std::visit([this](const auto& each) { On(each); }, event);
  return std::exchange(actions_, {});
}

TimePoint CampaignCore::NextDeadline() const {
  if (state_ == State::kAttempt) return scale_up_.NextDeadline();
  if (state_ != State::kPause) return kNever;
  return options_.time_limit == Duration::zero() ? next_at_
                                                 : std::min(next_at_, begin_ + options_.time_limit);
}

void CampaignCore::On(const AttemptRuns& runs) {
  if (state_ != State::kAttempt) return;
  hosts_.OnRuns(runs.hosts);
  seats_ = runs.seats;
  if (runs_since_ == kNever) runs_since_ = now_;  // else since a launcher before us
  join_by_ = kNever;
  if (scales_up_ || stop_signal_ != 0) return;
  waits_told_ = false;
  scale_up_.Begin(runs.hosts, hosts_.usable(), options_.most_hosts);
}

void CampaignCore::On(const HostLooked& looked) {
  scale_up_.OnHost(now_, looked.host, looked.reachable);
  DecideScaleUp();
}

void CampaignCore::On(const CheckpointLooked& looked) {
  scale_up_.OnCheckpoint(now_, looked.newer);
  if (!looked.newer && !looked.unknown && scale_up_.NextDeadline() != kNever &&
      !std::exchange(waits_told_, true)) {
    Say(absl::StrCat("dtrain: ", HostsBack(),
                     "; the next checkpoint (DTRAIN_CHECKPOINT_FILE) is "
                     "awaited before the restart with ",
                     scale_up_.nodes(), " nodes"));
  }
  DecideScaleUp();
}

// "node2 is back"
std::string CampaignCore::HostsBack() const {
  std::vector<std::string> names;
  for (const uint32_t host : scale_up_.back()) names.push_back(options_.hosts[host]);
  return absl::StrCat(rendezvous::FormatHosts(names), names.size() == 1 ? " is back" : " are back");
}

void CampaignCore::DecideScaleUp() {
  switch (scale_up_.Decide(now_)) {
    case ScaleUp::Next::kNothing:
      return;
    case ScaleUp::Next::kLookAtCheckpoint:
      actions_.emplace_back(LookAtCheckpoint{});
      return;
    case ScaleUp::Next::kRestart:
      break;
  }
  scales_up_ =
      EndAttempt{absl::StrCat("restarting with ", scale_up_.nodes(), " nodes: ", HostsBack()),
                 scale_up_.back()};
  Say(absl::StrCat("dtrain: ", scales_up_->why));
  actions_.emplace_back(*scales_up_);
}

// A stop that came while the attempt was ending for another reason is obeyed here.
void CampaignCore::On(const AttemptEnded& end) {
  if (state_ != State::kAttempt) return;
  AttemptRecord record;
  record.attempt = attempt_;
  record.exit_code = end.verdict.exit_code;
  if (end.verdict.kind != Verdict::Kind::kSuccess) record.cause = end.cause;
  // One may end before others have started.
  record.ran = runs_since_ != kNever ? now_ - runs_since_ : end.ran;
  // That a program has failed somewhere is no evidence about the host, nor that the host leaves.
  if (end.verdict.kind != Verdict::Kind::kWorker && !end.verdict.leaves) record.hosts = end.hosts;
  record.lost = end.verdict.kind == Verdict::Kind::kNode && end.verdict.exit_code == kExitNodeLost;
  record.ended = now_;
  ended_.push_back(std::move(record));
  hosts_.Doubt(end.lost_spares);  // by nobody's fault
  scale_up_.End();
  const bool scaled_up = IsScaledUp(end);
  if (scaled_up && end.done) {
    ended_.back().exit_code = 0;
    ended_.back().cause.clear();
    return End(
        {.kind = Verdict::Kind::kSuccess, .exit_code = 0, .message = "", .rank = {}, .signal = 0});
  }
  const Judgement judged = scaled_up ? Judgement{Next::kRestart} : Judge(end);
  if (judged.next == Next::kOver) {
    const bool is_stopped = stop_signal_ != 0 || !end.stopped.empty();
    const bool needs_word = restarts() && !is_stopped && !judged.why.empty();
    if (needs_word) Say(absl::StrCat("dtrain: not restarted: ", judged.why));
    return End(end.verdict);
  }
  if (stop_signal_ != 0) return End(StoppedBy(stop_signal_, stop_from_));
  if (!end.stopped.empty()) return End(StoppedThere(end.stopped));
  if (scaled_up) return RestartScaledUp(end);
  scales_up_.reset();
  switch (judged.next) {
    case Next::kOver:
      return;
    case Next::kRestart:
      return Restart(end);
    case Next::kJoinAgain:
      return JoinAgain(end);
    case Next::kBeginAgain:
      return BeginAgain(end);
    case Next::kPlanAgain:
      return PlanAgain(end);
  }
}

void CampaignCore::On(const StopAsked& asked) {
  if (!IsStop(asked.signal)) {
    // Else the attempt passes it on, or says that it cannot.
    if (state_ != State::kPause) return;
    return Say(absl::StrCat("dtrain: warning: ", SignalName(asked.signal),
                            " is ignored: no worker is running now"));
  }
  stop_signal_ = asked.signal;
  stop_from_ = asked.from;
  scale_up_.End();
  // While an attempt lives, it is what stops, and says when it has.
  if (state_ == State::kPause) End(StoppedBy(stop_signal_, stop_from_));
}

void CampaignCore::On(const CampaignTick&) {
  if (state_ == State::kAttempt) return DecideScaleUp();
  if (state_ != State::kPause) return;
  if (options_.time_limit > Duration::zero() && now_ >= begin_ + options_.time_limit) {
    return End({.kind = Verdict::Kind::kTimeLimit,
                .exit_code = kExitTimeLimit,
                .message = absl::StrCat("the time limit of ", FormatSeconds(options_.time_limit),
                                        " (--timeout) was reached before a restart"),
                .rank = {},
                .signal = 0});
  }
  if (now_ >= next_at_) Start();
}

// What only the user can mend is never tried again, nor is what the user wanted.
CampaignCore::Judgement CampaignCore::Judge(const AttemptEnded& end) const {
  using Kind = Verdict::Kind;
  // No attempt begins beside workers of the last one.
  if (end.verdict.left_behind) return {Next::kOver, kNotFreed};
  if (end.verdict.kind == Kind::kLauncher) return {Next::kBeginAgain};
  if (MayPlanAgain(end)) return {Next::kPlanAgain};
  if (!restarts()) return {};
  if (AllLeave(end)) return {Next::kOver, "all of its hosts are leaving"};
  const bool again = attempt_ > 0 && runs_since_ == kNever;
  switch (end.verdict.kind) {
    case Kind::kNone:
    case Kind::kSuccess:
    case Kind::kSignal:
    case Kind::kTimeLimit:
    case Kind::kLauncher:
      return {};
    case Kind::kWorker:
      return JudgeWorker(end.verdict);
    case Kind::kStalled:
      if (!options_.on_stall) return {Next::kOver, NotNamed("stall")};
      return {Next::kRestart};
    case Kind::kRefused:
      // The hosts that are left do not suffice: others may come back.
      return {again ? Next::kJoinAgain : Next::kOver};
    case Kind::kStartTimeout:
      return {again ? Next::kJoinAgain : Next::kOver};
    case Kind::kNode:
      return JudgeNode(end, again);
  }
  return {};
}

CampaignCore::Judgement CampaignCore::JudgeWorker(const Verdict& verdict) const {
  const int code = verdict.rank_code != 0 ? verdict.rank_code : verdict.exit_code;
  if (code == kExitNotExecutable || code == kExitNotFound) {
    return {Next::kOver, absl::StrCat("exit code ", code, " means that a program cannot be ",
                                      code == kExitNotFound ? "found" : "executed")};
  }
  // Of a program that did not get going. Later it may be a file system that is not there, or a
  // broken file, and a restart continues from a checkpoint.
  if (attempt_ == 0 && ended_.back().ran < options_.min_uptime && !verdict.mistake.empty()) {
    return {Next::kOver, absl::StrCat("a restart does not mend \"", verdict.mistake, "\"")};
  }
  for (const auto& [first, last] : options_.never_on) {
    if (first > static_cast<uint32_t>(code) || static_cast<uint32_t>(code) > last) continue;
    return {Next::kOver, absl::StrCat("exit code ", code, " is in --no-restart-on")};
  }
  if (!options_.on_failure) return {Next::kOver, NotNamed("failure")};
  return {Next::kRestart};
}

CampaignCore::Judgement CampaignCore::JudgeNode(const AttemptEnded& end, bool again) const {
  // The work was complete before the host was lost; only output may be missing. But where a host
  // leaves, ranks may have ended with 0 because its shutdown told them to.
  if (end.done && !end.verdict.leaves) return {Next::kOver, "all ranks had ended with 0"};
  switch (end.verdict.exit_code) {
    case kExitNodeLost:
    case kExitAgentLost:
      if (runs_since_ == kNever) return {again ? Next::kJoinAgain : Next::kOver};
      if (!options_.on_node) return {Next::kOver, NotNamed("node")};
      return {Next::kRestart};
    case kExitUsage:  // a name that is unknown for a while
    case kExitStartAgents:
    case kExitRendezvous:
      return {again ? Next::kJoinAgain : Next::kOver};
    case kExitCleanup:
      return {Next::kOver, kNotFreed};
    default:
      return {};
  }
}

// Not one host but the job is told to go, as with an allocation that ends. Which hosts are all is
// known once the job has run.
bool CampaignCore::AllLeave(const AttemptEnded& end) const {
  return end.verdict.leaves && end.hosts.size() > 1 && !seats_.empty() &&
         end.hosts.size() >= seats_.size() && !hosts_.SufficesWithout(end.hosts);
}

// The job goes on without the hosts that it lost: such a restart costs none.
bool CampaignCore::IsReplaced(const AttemptEnded& end) const {
  return end.verdict.kind == Verdict::Kind::kNode && end.verdict.exit_code == kExitNodeLost &&
         hosts_.CanReplace(end.hosts);
}

uint32_t CampaignCore::counted() const {
  return static_cast<uint32_t>(
      std::count_if(ended_.begin(), ended_.end(), [this](const AttemptRecord& record) {
        return record.counted && record.attempt < attempt_;  // else none followed
      }));
}

uint32_t CampaignCore::Used() const {
  return static_cast<uint32_t>(
      std::count_if(ended_.begin(), ended_.end(), [this](const AttemptRecord& record) {
        return record.counted && (options_.restart_window == Duration::zero() ||
                                  now_ - record.ended <= options_.restart_window);
      }));
}

void CampaignCore::Restart(const AttemptEnded& end) {
  const bool leaves = end.verdict.leaves;
  // A program that kills dtrain's processes each time it begins would be restarted for ever.
  const bool planned = leaves && ended_.back().ran >= options_.min_uptime;
  const bool costs = !planned && !IsReplaced(end);
  const uint32_t used = Used();
  ended_.back().counted = costs;
  if (costs && used >= options_.max_restarts) {
    if (options_.max_restarts == 0) return End(end.verdict);
    Verdict verdict = end.verdict;
    verdict.exit_code = kExitRestarts;
    return End(std::move(verdict));
  }
  BlameGpus(end);
  for (std::string& line : hosts_.Blame(now_, ended_.back())) Say(std::move(line));
  TimePoint at = std::max(now_ + BackOff(), hosts_.NotBefore(end, /*restarts=*/true));
  if (leaves) {
    const bool without = hosts_.SetLeavingAside(end.hosts);
    if (!without) at = std::max(at, now_ + kLeavingTakes);
    Say(absl::StrCat("dtrain: ", end.cause, "; the job restarts ", without ? "without " : "with ",
                     end.hosts.size() == 1 ? "it" : "them", " in ", Rounded(at - now_)));
  } else {
    Say(absl::StrCat("dtrain: restart",
                     costs ? absl::StrCat(" ", used + 1, " of ", options_.max_restarts)
                           : ", not counted as other hosts can take over,",
                     " in ", Rounded(at - now_), ": ", end.cause));
  }
  ++attempt_;
  join_by_ = at + options_.join_timeout;
  Pause(at);
}

// Ended by us, and by nothing else that happened meanwhile.
bool CampaignCore::IsScaledUp(const AttemptEnded& end) const {
  return scales_up_ && end.verdict.kind == Verdict::Kind::kSignal &&
         end.verdict.exit_code == kExitSignalBase + SIGTERM;
}

void CampaignCore::RestartScaledUp(const AttemptEnded& end) {
  ended_.back().cause = scales_up_->why;
  ended_.back().back = scales_up_->hosts;
  scales_up_.reset();
  hosts_.Welcome(ended_.back());
  BlameGpus(end);
  const TimePoint at = std::max(now_ + BackOff(), hosts_.NotBefore(end, /*restarts=*/true));
  ++attempt_;
  join_by_ = at + options_.join_timeout;
  Pause(at);
}

void CampaignCore::JoinAgain(const AttemptEnded& end) {
  const TimePoint at = std::max(now_ + kJoinAgain, hosts_.NotBefore(end, /*restarts=*/true));
  if (at >= join_by_) {
    Verdict verdict = end.verdict;
    verdict.kind = Verdict::Kind::kNode;
    verdict.exit_code = kExitNodeLost;
    verdict.message = absl::StrCat("no restart within ", FormatSeconds(options_.join_timeout),
                                   " (--join-timeout): ", end.verdict.message);
    return End(std::move(verdict));
  }
  ended_.pop_back();  // it never ran
  hosts_.Doubt(end.hosts);
  const std::string with = hosts_.TakeBackLeftOut();
  BlameGpus(end);
  Say(absl::StrCat("dtrain: the restart is tried again for another ", Rounded(join_by_ - now_),
                   hosts_.SetAsideWelcomed(), with, ": ", end.cause));
  Pause(at);
}

// Nothing of it is to blame, and nothing has run.
void CampaignCore::BeginAgain(const AttemptEnded& end) {
  const TimePoint at = std::max(now_, hosts_.NotBefore(end, attempt_ > 0));
  ended_.pop_back();
  Say(absl::StrCat(
      "dtrain: ", end.verdict.message,
      at > now_ ? absl::StrCat("; not all nodes answer: it starts again in ", Rounded(at - now_))
                : "; it starts again"));
  if (attempt_ > 0) join_by_ = at + options_.join_timeout;
  Pause(at);
}

// Hosts that are gone before the workers ran are as if they had never come: others take their
// places, or else each is awaited once more.
bool CampaignCore::MayPlanAgain(const AttemptEnded& end) const {
  if (!end.verdict.absent || end.hosts.empty() || runs_since_ != kNever) return false;
  if (hosts_.SufficesWithout(end.hosts)) return true;
  // Those that could not be reached have had their time. A restart has more of it.
  return attempt_ == 0 && end.joined && !hosts_.AnyWaitedFor(end.hosts);
}

void CampaignCore::PlanAgain(const AttemptEnded& end) {
  const char* who = end.hosts.size() == 1 ? "that host" : "those hosts";
  const std::string how = hosts_.SetAbsentAside(end.hosts, end.joined)
                              ? absl::StrCat("without ", who, ", unless it is back at once")
                              : absl::StrCat("and waits for ", who);
  const TimePoint at = std::max(now_, hosts_.NotBefore(end, attempt_ > 0));
  ended_.pop_back();
  Say(absl::StrCat("dtrain: ", end.cause, "; not all workers ran yet: the start begins again ", how,
                   at > now_ ? absl::StrCat(", in ", Rounded(at - now_)) : ""));
  Pause(at);
}

// How long the pause is, once the last of ended_ is over. The next one is longer.
Duration CampaignCore::BackOff() {
  if (ended_.back().ran >= options_.min_uptime) backoff_ = options_.backoff;
  return std::exchange(backoff_, std::min(backoff_ * 2, options_.longest_backoff));
}

void CampaignCore::BlameGpus(const AttemptEnded& end) {
  for (std::string& line : hosts_.BlameGpus(end.bad_gpus)) Say(std::move(line));
}

void CampaignCore::Say(std::string line) { actions_.emplace_back(Announce{std::move(line)}); }

void CampaignCore::Pause(TimePoint until) {
  state_ = State::kPause;
  next_at_ = until;
}

void CampaignCore::Start() {
  state_ = State::kAttempt;
  runs_since_ = kNever;
  next_at_ = kNever;
  BeginAttempt begin;
  begin.attempt = attempt_;
  hosts_.Offer(now_, begin);
  begin.seats = seats_;
  if (options_.time_limit > Duration::zero()) {
    begin.time_limit =
        std::max<Duration>(begin_ + options_.time_limit - now_, std::chrono::milliseconds(1));
  }
  actions_.emplace_back(std::move(begin));
}

void CampaignCore::End(Verdict verdict) {
  state_ = State::kOver;
  actions_.emplace_back(EndCampaign{std::move(verdict)});
}

}  // namespace dtrain::job
