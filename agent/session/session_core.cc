// SPDX-License-Identifier: Apache-2.0
#include "agent/session/session_core.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "agent/session/end_phase.h"
#include "agent/session/join_phase.h"
#include "agent/session/launcher_lease.h"
#include "agent/session/release_phase.h"
#include "agent/session/shepherd_watch.h"
#include "common/base/own_pause.h"

namespace dtrain::session {

// The parts of SessionCore, each built on those above it.
struct SessionPhases {
  template <typename... Args>
  explicit SessionPhases(Args&&... args) : life(std::forward<Args>(args)...) {}

  Life life;
  LauncherLease lease{life};
  ShepherdWatch shepherd{life};
  ReleasePhase release{life, lease};
  EndPhase end{life, lease, shepherd, release};
  JoinPhase join{life, lease, shepherd, release};

  // By its type, for the tables.
  template <typename Phase>
  Phase& Get() {
    return std::get<Phase&>(std::tie(lease, shepherd, release, end, join));
  }

  void Dispatch(const Event& event);
  void CheckDeadlines();
  TimePoint NextDeadline();
  void CreditOwnPause(TimePoint now);
};

namespace {

using State = SessionState;
using Handler = void (*)(SessionPhases&, const Event&);
using When = TimePoint (*)(SessionPhases&);

template <typename Phase>
void Call(SessionPhases& phases, void (Phase::*method)(), const Event&) {
  (phases.Get<Phase>().*method)();
}
template <typename Phase, typename What>
void Call(SessionPhases& phases, void (Phase::*method)(const What&), const Event& event) {
  (phases.Get<Phase>().*method)(std::get<What>(event));
}
template <typename Phase>
TimePoint Ask(SessionPhases& phases, TimePoint (Phase::*method)() const) {
  return (phases.Get<Phase>().*method)();
}

// Cells of the tables: a phase and its handler, or its deadline.
template <auto kMethod>
void On(SessionPhases& phases, const Event& event) {
  Call(phases, kMethod, event);
}
template <auto kMethod>
TimePoint At(SessionPhases& phases) {
  return Ask(phases, kMethod);
}
void Ignore(SessionPhases&, const Event&) {}

constexpr Handler kIgnore = &Ignore;
// The launcher's error, which ends the session.
constexpr Handler kIllegal = nullptr;

enum Kind {
  // What the launcher says. It renews the lease; of a launcher that was given up nothing is taken.
  kHello,
  kProbe,
  kHoldPorts,
  kReserve,
  kLookAgain,
  kEndJob,
  kKeepJob,
  kHeartbeat,
  kGoodbye,
  kUnknown,
  kHeard,
  kJobFrame,
  kResumed,
  kTakenOver,
  // The rest.
  kAway,
  kGone,
  kBroke,
  kReported,
  kAnswers,
  kJobEnded,
  kShepherdGone,
  kLeftoversGone,
  kGpusSeen,
  kStopAsked,
  kReady,
  kKinds,
};
bool IsSaidByLauncher(Kind kind) { return kind <= kTakenOver; }

struct Row {
  Kind kind;
  const char* name;
  Handler in[7];  // kNew .. kFinished; nothing is taken in kEnded
};

struct Deadline {
  State in;
  When when;
  Handler then;
};

using Lease = LauncherLease;
using Watch = ShepherdWatch;
using Join = JoinPhase;
using End = EndPhase;
using Free = ReleasePhase;

// clang-format off

// Every transition. By the cell's handler, in which state it leaves the session:
//   Join::OnHello joined or ended;  Join::OnJobFrame running, if the frame is kept;  End::Orphan
//   orphaned;  End::OnShepherdGone reaping;  End::OnJobEnded, OnOrphansEnded, OnLeftoversGone
//   releasing, finished if no GPU is to be waited for, ended if nobody is there either;
//   Free::OnGpusSeen the same;  End::OnGone, OnGoodbye, OnBroke, Free::OnGoodbye and what is
//   illegal ended;  End::Leave ended, unless the agent is resident;  all others in the one it is in.
constexpr Row kTable[] = {
    //                                    new                       joined                    running                   orphaned                  reaping                    releasing                     finished
    {kHello,          "Hello",           {On<&Join::OnHello>,       kIllegal,                 kIllegal,                 kIgnore,                  kIllegal,                  kIllegal,                     kIllegal}},
    {kProbe,          "ProbeRequest",    {kIllegal,                 On<&Join::OnProbe>,       kIllegal,                 kIgnore,                  kIllegal,                  kIllegal,                     kIllegal}},
    {kHoldPorts,      "HoldPorts",       {kIllegal,                 On<&Join::OnHoldPorts>,   kIllegal,                 kIgnore,                  kIllegal,                  kIllegal,                     kIllegal}},
    {kReserve,        "Reserve",         {kIllegal,                 On<&Join::OnReserve>,     kIllegal,                 kIgnore,                  kIllegal,                  kIllegal,                     kIllegal}},
    {kLookAgain,      "LookAgain",       {kIllegal,                 On<&Join::OnLookAgain>,   kIllegal,                 kIgnore,                  kIllegal,                  kIllegal,                     kIllegal}},
    {kEndJob,         "EndJob",          {kIllegal,                 On<&Free::Hurry>,         On<&End::OnEndJob>,       kIgnore,                  On<&Free::Hurry>,          On<&Free::Hurry>,             On<&Free::Hurry>}},
    {kKeepJob,        "KeepJob",         {kIllegal,                 kIllegal,                 On<&End::OnKeepJob>,      kIgnore,                  kIgnore,                   kIgnore,                      kIgnore}},
    {kHeartbeat,      "Heartbeat",       {kIllegal,                 kIgnore,                  kIgnore,                  kIgnore,                  kIgnore,                   kIgnore,                      kIgnore}},
    {kGoodbye,        "Goodbye",         {kIllegal,                 On<&End::OnGoodbye>,      On<&End::Orphan>,         kIgnore,                  On<&End::Abandon>,         On<&Free::OnGoodbye>,         On<&End::OnGoodbye>}},
    {kUnknown,        "a message that is the shepherd's, empty or unknown",
                                         {kIllegal,                 kIllegal,                 kIllegal,                 kIgnore,                  kIllegal,                  kIllegal,                     kIllegal}},
    {kHeard,          "",                {kIgnore,                  kIgnore,                  kIgnore,                  kIgnore,                  kIgnore,                   kIgnore,                      kIgnore}},
    {kJobFrame,       "",                {kIgnore,                  On<&Join::OnJobFrame>,    On<&Watch::OnJobFrame>,   kIgnore,                  kIgnore,                   kIgnore,                      kIgnore}},
    {kResumed,        "",                {kIgnore,                  On<&Lease::OnResumed>,    On<&Lease::OnResumed>,    kIgnore,                  On<&Lease::OnResumed>,     On<&Lease::OnResumed>,        On<&Lease::OnResumed>}},
    {kTakenOver,      "",                {kIgnore,                  On<&Join::OnTakenOver>,   On<&Join::OnTakenOver>,   kIgnore,                  On<&Join::OnTakenOver>,    On<&Join::OnTakenOver>,       On<&Join::OnTakenOver>}},
    // Whether the stream that ended leaves a session to come back to is the agent's kind: resident
    // (kAway) or not (kGone), unless the job may be left to another agent.
    {kAway,           "",                {On<&End::OnGone>,         On<&End::OnAway>,         On<&End::OnAway>,         kIgnore,                  On<&End::OnAway>,          On<&End::OnAway>,             On<&End::OnAway>}},
    {kGone,           "",                {On<&End::OnGone>,         On<&End::OnGone>,         On<&End::Orphan>,         kIgnore,                  On<&End::Abandon>,         On<&End::Leave>,              On<&End::OnGone>}},
    {kBroke,          "",                {On<&End::OnBroke>,        On<&End::OnBroke>,        On<&End::OnBroke>,        On<&End::OnBroke>,        On<&End::OnBroke>,         On<&End::OnBroke>,            On<&End::OnBroke>}},
    {kReported,       "",                {On<&Free::OnReported>,    On<&Free::OnReported>,    On<&Free::OnReported>,    On<&Free::OnReported>,    On<&Free::OnReported>,     On<&Free::OnReported>,        On<&Free::OnReported>}},
    {kAnswers,        "",                {kIgnore,                  On<&Watch::OnAnswers>,    On<&Watch::OnAnswers>,    kIgnore,                  kIgnore,                   kIgnore,                      kIgnore}},
    {kJobEnded,       "",                {kIgnore,                  kIgnore,                  On<&End::OnJobEnded>,     On<&End::OnOrphansEnded>, kIgnore,                   On<&End::OnJobEndedAgain>,    On<&End::OnJobEndedAgain>}},
    {kShepherdGone,   "",                {On<&End::OnShepherdGone>, On<&End::OnShepherdGone>, On<&End::OnShepherdGone>, On<&End::OnShepherdGone>, kIgnore,                   On<&End::OnShepherdGoneLate>, On<&End::OnShepherdGoneLate>}},
    {kLeftoversGone,  "",                {kIgnore,                  kIgnore,                  kIgnore,                  kIgnore,                  On<&End::OnLeftoversGone>, kIgnore,                      kIgnore}},
    {kGpusSeen,       "",                {kIgnore,                  On<&Free::OnGpusBefore>,  kIgnore,                  kIgnore,                  kIgnore,                   On<&Free::OnGpusSeen>,        kIgnore}},
    {kStopAsked,      "",                {kIgnore,                  On<&Lease::OnStopAsked>,  On<&End::OnStopAsked>,    kIgnore,                  On<&Lease::OnStopAskedLate>, On<&Lease::OnStopAskedLate>, On<&Lease::OnStopAskedLate>}},
    {kReady,          "",                {kIgnore,                  kIgnore,                  On<&End::OnReady>,        On<&End::OnReady>,        kIgnore,                   On<&End::OnReady>,            On<&End::OnReady>}},
};

// What happens without a word of anybody, in the order in which it does when several are due. No
// state is without.
constexpr Deadline kDeadlines[] = {
    {State::kNew,       At<&Lease::HelloDue>,   On<&Join::OnNoHello>},  // 30 s for the Hello
    {State::kJoined,    At<&Lease::JoinEnd>,    On<&End::OnGone>},      // lease; of a launcher on this machine its stream
    {State::kJoined,    At<&Lease::BeatAt>,     On<&Lease::Beat>},
    {State::kJoined,    At<&Join::LookAt>,      On<&Join::Look>},       // 100 ms after the last, if it was asked for
    {State::kRunning,   At<&Lease::End>,        On<&End::OnUnheard>},   // lease, or away, and launcher-wait; likewise
    {State::kRunning,   At<&End::OrphanEnd>,    On<&End::OnOrphanEnd>}, // grace and 10 s, of a detached job after that
    {State::kRunning,   At<&Watch::SilentAt>,   On<&Watch::OnSilent>},  // lease, once something was asked
    {State::kRunning,   At<&Watch::AnswerDue>,  On<&End::OnAnswerDue>}, // grace and 10 s, once told to end
    {State::kRunning,   At<&Lease::BeatAt>,     On<&Lease::Beat>},
    {State::kOrphaned,  At<&End::OrphanEnd>,    On<&End::OnOrphanEnd>}, // grace and 10 s
    {State::kReaping,   At<&Lease::End>,        On<&End::Abandon>},     // as running; it goes on without
    {State::kReaping,   At<&End::ReapEnd>,      On<&End::OnReapEnd>},   // 60 s for containers; then what Processes::EndAll takes
    {State::kReaping,   At<&Lease::BeatAt>,     On<&Lease::Beat>},
    {State::kReleasing, At<&Lease::KeptEnd>,    On<&End::Leave>},       // as running, and a day of a detached job
    {State::kReleasing, At<&Free::GiveUpAt>,    On<&Free::GiveUp>},     // 10 s, or 2 s
    {State::kReleasing, At<&Free::LookAt>,      On<&Free::Look>},       // 250 ms
    {State::kReleasing, At<&Lease::BeatAt>,     On<&Lease::Beat>},
    {State::kFinished,  At<&Lease::KeptEnd>,    On<&End::OnGone>},      // as releasing
    {State::kFinished,  At<&Lease::BeatAt>,     On<&Lease::Beat>},
};
// clang-format on

constexpr bool InOrder() {
  for (int i = 0; i < kKinds; ++i) {
    if (kTable[i].kind != i) return false;
  }
  return std::size(kTable) == kKinds;
}
static_assert(InOrder());

constexpr bool HaveDeadlines() {
  for (State state = State::kNew; state < State::kEnded; state = State(int(state) + 1)) {
    if (std::none_of(std::begin(kDeadlines), std::end(kDeadlines),
                     [state](const Deadline& each) { return each.in == state; })) {
      return false;
    }
  }
  return true;
}
static_assert(HaveDeadlines());

Kind KindOf(const v1::SessionRequest& request) {
  switch (request.kind_case()) {
    case v1::SessionRequest::kHello:
      return kHello;
    case v1::SessionRequest::kProbe:
      return kProbe;
    case v1::SessionRequest::kHoldPorts:
      return kHoldPorts;
    case v1::SessionRequest::kReserve:
      return kReserve;
    case v1::SessionRequest::kLookAgain:
      return kLookAgain;
    case v1::SessionRequest::kEndJob:
      return kEndJob;
    case v1::SessionRequest::kKeepJob:
      return kKeepJob;
    case v1::SessionRequest::kHeartbeat:
      return kHeartbeat;
    case v1::SessionRequest::kGoodbye:
      return kGoodbye;
    default:
      return kUnknown;
  }
}

// A row for each event but Tick.
struct RowOf {
  bool outlives_us;
  Kind operator()(const Request& e) const { return KindOf(e.request); }
  Kind operator()(const Heard&) const { return kHeard; }
  Kind operator()(const JobFrame&) const { return kJobFrame; }
  Kind operator()(const LauncherGone&) const { return outlives_us ? kAway : kGone; }
  Kind operator()(const LauncherBroke&) const { return kBroke; }
  Kind operator()(const Resumed&) const { return kResumed; }
  Kind operator()(const TakenOver&) const { return kTakenOver; }
  Kind operator()(const Reported&) const { return kReported; }
  Kind operator()(const ShepherdAnswers&) const { return kAnswers; }
  Kind operator()(const JobEnded&) const { return kJobEnded; }
  Kind operator()(const ShepherdGone&) const { return kShepherdGone; }
  Kind operator()(const LeftoversGone&) const { return kLeftoversGone; }
  Kind operator()(const GpusSeen&) const { return kGpusSeen; }
  Kind operator()(const StopAsked&) const { return kStopAsked; }
  Kind operator()(const ReadyToBeLeft&) const { return kReady; }
  Kind operator()(const Tick&) const { return kKinds; }
};

Handler Lookup(Kind kind, State state) { return kTable[kind].in[static_cast<size_t>(state)]; }

}  // namespace

void SessionPhases::Dispatch(const Event& event) {
  const Kind kind = std::visit(RowOf{life.self().resumable || end.MayBeLeft()}, event);
  if (IsSaidByLauncher(kind)) {
    if (lease.given_up()) return;
    lease.OnHeard();
  }
  if (const Handler handler = Lookup(kind, life.state()); handler != kIllegal) {
    return handler(*this, event);
  }
  life.Finish(absl::FailedPreconditionError(absl::StrCat("the launcher sent ", kTable[kind].name,
                                                         ", which an agent does not take in ",
                                                         "state ", StateName(life.state()))));
}

void SessionPhases::CheckDeadlines() {
  const State in = life.state();
  for (const Deadline& each : kDeadlines) {
    if (each.in != in || life.now() < each.when(*this)) continue;
    each.then(*this, Tick{});
    if (life.state() != in) return;
  }
}

TimePoint SessionPhases::NextDeadline() {
  TimePoint next = kNever;
  for (const Deadline& each : kDeadlines) {
    if (each.in == life.state()) next = std::min(next, each.when(*this));
  }
  return next;
}

void SessionPhases::CreditOwnPause(TimePoint now) {
  if (life.state() != State::kNew) {
    const Duration pause = OwnPause(life.now(), NextDeadline(), now, lease.beat_period() / 4);
    lease.Credit(pause);
    shepherd.Credit(pause);
  }
  life.AdvanceTo(now);
}

SessionCore::SessionCore(Identity self, TimePoint now)
    : phases_(std::make_unique<SessionPhases>(std::move(self), now)) {}

SessionCore::SessionCore(Identity self, TimePoint now, const v1::Account& account,
                         const Reported& reported)
    : phases_(std::make_unique<SessionPhases>(std::move(self), now, account.kept().hello())) {
  phases_->lease.OnAway();
  phases_->release.Adopt(account.kept(), reported, account.finished());
}

SessionCore::~SessionCore() = default;
SessionCore::SessionCore(SessionCore&&) noexcept = default;
SessionCore& SessionCore::operator=(SessionCore&&) noexcept = default;

std::vector<Action> SessionCore::OnEvent(TimePoint now, const Event& event) {
  phases_->CreditOwnPause(now);
  if (state() == State::kEnded) return {};
  if (std::holds_alternative<Tick>(event)) {
    phases_->CheckDeadlines();
  } else {
    phases_->Dispatch(event);
  }
  return phases_->life.Take();
}

TimePoint SessionCore::NextDeadline() const { return phases_->NextDeadline(); }
SessionState SessionCore::state() const { return phases_->life.state(); }
const v1::Hello& SessionCore::hello() const { return phases_->life.hello(); }
bool SessionCore::away() const { return phases_->lease.away(); }
Duration SessionCore::most_silence() const { return phases_->lease.most_silence(); }

bool SessionCore::CanResume(const v1::Hello& hello) const {
  if (state() == State::kEnded || phases_->lease.given_up() ||
      Lookup(kResumed, state()) == kIgnore) {
    return false;
  }
  const v1::Hello& ours = this->hello();
  return hello.job_id() == ours.job_id() && hello.attempt() == ours.attempt() &&
         hello.incarnation() == ours.incarnation() &&
         hello.protocol() == phases_->life.self().protocol;
}

bool SessionCore::Outranks(const v1::Hello& hello) const {
  return hello.generation() > this->hello().generation();
}

bool SessionCore::passes() const {
  return state() == State::kJoined || state() == State::kRunning || state() == State::kReleasing ||
         state() == State::kFinished;
}

bool SessionCore::MayBeLeft() const { return phases_->end.MayBeLeft(); }

Duration SessionCore::grace() const {
  const Life& life = phases_->life;
  return life.started() ? std::chrono::milliseconds(life.grace_ms()) : Duration::zero();
}

}  // namespace dtrain::session
