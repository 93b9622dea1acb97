// SPDX-License-Identifier: Apache-2.0
#include "agent/session/session.h"

#include <chrono>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/text.h"
#include "common/os/crash.h"

namespace dtrain::session {
namespace {

// For a shepherd that has no session any more to end, beyond the grace of its workers.
constexpr Duration kPatience = std::chrono::seconds(10);

// Which of a message's alternatives it is: "dtrain.v1.SessionRequest.start".
absl::string_view KindOf(const google::protobuf::Message& message) {
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  const google::protobuf::OneofDescriptor* kinds = type.FindOneofByName("kind");
  const google::protobuf::FieldDescriptor* kind =
      kinds != nullptr ? message.GetReflection()->GetOneofFieldDescriptor(message, kinds) : nullptr;
  return kind != nullptr ? absl::string_view(kind->full_name()) : type.full_name();
}

template <typename... Each>
struct Overload : Each... {
  using Each::operator()...;
};
template <typename... Each>
Overload(Each...) -> Overload<Each...>;  // clang 14 needs it

}  // namespace

absl::Status AnothersNow(const v1::Hello& present) {
  return absl::AlreadyExistsError(
      absl::StrCat("this job has another launcher now: ", Escape(present.launcher())));
}

Session::Session(Surroundings surroundings, Owner owner, SessionCore core,
                 std::unique_ptr<ShepherdChannel> shepherd, loop::Task on_ended)
    : agent_(std::move(surroundings)),
      owner_(std::move(owner)),
      since_unix_nanos_(absl::GetCurrentTimeNanos()),
      core_(std::move(core)),
      on_ended_(std::move(on_ended)),
      holdings_(agent_, owner_, core_.hello()),
      shepherd_(std::move(shepherd)),
      job_(
          agent_, core_.hello(), owner_.uid, *shepherd_,
          [this](const Event& event) {
            if (const auto* reported = std::get_if<Reported>(&event)) gpus_.Watch(reported->gpus);
            Feed(event);
          },
          [this](const std::string& what) { Warn(what); }),
      joining_(agent_, core_.hello(), holdings_, *shepherd_,
               {[this](const v1::SessionEvent& event) { announcements_.Say(event); },
                [this](std::vector<v1::Gpu> gpus) {
                  gpus_.Before(gpus);
                  Feed(GpusSeen{std::move(gpus), "", {}});
                }}),
      launcher_(agent_.loop, LauncherHandlers()),
      announcements_(launcher_),
      gpus_(agent_, *shepherd_, GpuHandlers()),
      deadline_(agent_.loop) {
  shepherd_->ShareRoom(agent_.relays);
  shepherd_->Listen(ShepherdHandlers());
}

Session::Session(Surroundings surroundings, Owner owner, std::unique_ptr<ShepherdChannel> shepherd,
                 std::shared_ptr<Stream> stream, loop::Task on_ended)
    : Session(surroundings, std::move(owner),
              SessionCore(surroundings.self, surroundings.loop.Now()), std::move(shepherd),
              std::move(on_ended)) {
  launcher_.Listen(std::move(stream));
  Feed(Tick{});
}

Session::Session(Surroundings surroundings, Owner owner, std::unique_ptr<ShepherdChannel> shepherd,
                 v1::Account account, const v1::JobRecord& record, JobDirectory directory,
                 loop::Task on_ended)
    : Session(surroundings, std::move(owner),
              SessionCore(surroundings.self, surroundings.loop.Now(), account,
                          ReportedBy(account.report(), record)),
              std::move(shepherd), std::move(on_ended)) {
  holdings_.Adopt(std::move(directory), ReservedBy(account.report(), record));
  gpus_.Before({account.kept().gpus_before().begin(), account.kept().gpus_before().end()});
  job_.OnReport(std::move(*account.mutable_report()));
  Feed(Tick{});
}

Session::~Session() {
  *alive_ = false;
  shepherd_->processes().set_patience(core_.grace() + kPatience);
}

// ---- what is heard ------------------------------------------------------------------------

void Session::Begin(const v1::Hello& hello) {
  launcher_.Greet(hello);
  v1::SessionRequest request;
  *request.mutable_hello() = hello;
  OnRequest(request);
}

// Of the same rank, but another process: two have taken the job over at once, which their journal
// forbids. Whoever was first goes on.
absl::Status Session::CheckRank(const v1::Hello& hello) const {
  const v1::Hello& ours = core_.hello();
  if (hello.generation() > ours.generation()) return absl::OkStatus();
  const uint64_t known = launcher_.greeting().agent().epoch();
  const bool same = known == 0 || known == hello.agent().epoch();
  if (hello.generation() == ours.generation() && (same || hello.generation() == 0)) {
    return absl::OkStatus();
  }
  return AnothersNow(ours);
}

void Session::Resume(std::shared_ptr<Stream> stream, const v1::Hello& hello) {
  // One that the agent before us was to welcome, and that has not heard of it: it knows nothing
  // yet.
  const bool unwelcomed = hello.generation() > 0 && hello.agent().of() == 0 &&
                          launcher_.greeting().agent().epoch() == 0;
  const bool another = core_.Outranks(hello) || unwelcomed;
  if (another) {
    launcher_.Finish(AnothersNow(hello));
    launcher_.BeginAnew();
  }
  launcher_.Greet(hello);
  launcher_.Listen(std::move(stream));
  if (another) return Feed(TakenOver{hello});
  Feed(Resumed{hello});
}

// Of a detached job only the launcher that has it: what one before it asked for may still come.
void Session::AttachLogs(std::shared_ptr<LogRelay::Writer> writer, const v1::LogsRequest& request,
                         const Stream* beside) {
  if (core_.hello().generation() > 0 && !launcher_.is(beside)) {
    return writer->Finish(AnothersNow(core_.hello()));
  }
  job_.logs().Attach(std::move(writer), request);
}

LauncherStream::Handlers Session::LauncherHandlers() {
  LauncherStream::Handlers handlers;
  handlers.on_request = [this](const v1::SessionRequest& request) { OnRequest(request); };
  handlers.on_heard = [this] { Feed(Heard{}); };
  handlers.on_job_frame = [this](link::Frame frame) { return OnJobFrame(std::move(frame)); };
  handlers.next_job_frame = [this] { return shepherd_->NextToLauncher(); };
  handlers.job_frames_first = [this] { return shepherd_->gone(); };
  handlers.on_closed = [this] { OnStreamClosed(); };
  handlers.on_broke = [this](absl::Status why) { Feed(LauncherBroke{std::move(why)}); };
  return handlers;
}

void Session::OnStreamClosed() {
  const std::shared_ptr<bool> alive = alive_;
  launcher_.Close();
  shepherd_->Detach();
  Feed(LauncherGone{});
  if (*alive && core_.MayBeLeft() && joining_.Leave()) return;
  // The call is over, or its connection could not be.
  if (!*alive || !agent_.self.resumable) return;
  launcher_.Finish(absl::CancelledError("the launcher is gone"));
}

void Session::OnRequest(const v1::SessionRequest& request) {
  // For who looks for the reason of a crash.
  os::NoteRequest(KindOf(request), core_.hello().job_id(), owner_.name);
  Feed(Request{request});
}

absl::Status Session::OnJobFrame(link::Frame frame) {
  const std::shared_ptr<bool> alive = alive_;
  Feed(JobFrame{frame.header.keep, frame.header.keep || frame.payload.size() > 0});
  if (!*alive || dropped_ || !core_.passes()) return absl::OkStatus();
  return shepherd_->Pass(std::move(frame));
}

ShepherdChannel::Handlers Session::ShepherdHandlers() {
  ShepherdChannel::Handlers handlers;
  handlers.on_event = [this](v1::ShepherdEvent event) { job_.OnEvent(std::move(event)); };
  handlers.on_attached = [this](const v1::Party& end) { launcher_.SendAttached(end); };
  handlers.on_frame = [this] {
    launcher_.Pump();
    Feed(ShepherdAnswers{});
  };
  handlers.on_gone = [this](std::string why) {
    launcher_.Pump();
    Feed(ShepherdGone{std::move(why)});
  };
  return handlers;
}

JobGpus::Handlers Session::GpuHandlers() {
  JobGpus::Handlers handlers;
  handlers.on_errors = [this](v1::SessionEvent event) { announcements_.Say(std::move(event)); };
  handlers.on_sample = [this](const v1::GpuStates& states) { announcements_.SaySample(states); };
  handlers.on_seen = [this](GpusSeen seen) { Feed(std::move(seen)); };
  return handlers;
}

v1::JobOnNode Session::Describe() const {
  v1::JobOnNode job = job_.Describe(core_.state(), core_.away());
  SayWhose(job);
  for (v1::RankOnNode& rank : *job.mutable_ranks()) {
    rank.set_rank(core_.hello().elastic().first_number() + rank.rank());
  }
  return job;
}

v1::JobOnNode Session::DescribeInName() const {
  v1::JobOnNode job = job_.DescribeInName(core_.state(), core_.away());
  SayWhose(job);
  if (job.has_elastic()) job.mutable_elastic()->clear_first_number();
  return job;
}

void Session::SayWhose(v1::JobOnNode& job) const {
  job.set_job_id(core_.hello().job_id());
  job.set_attempt(core_.hello().attempt());
  if (core_.hello().has_elastic()) *job.mutable_elastic() = core_.hello().elastic();
  job.set_owner(owner_.name);
  job.set_uid(owner_.uid);
  job.set_since_unix_nanos(since_unix_nanos_);
}

void Session::Leave(absl::string_view why) { Feed(LauncherBroke{absl::AbortedError(why)}); }

bool Session::StopBy(std::string message) {
  const bool runs = core_.state() <= SessionState::kRunning;
  stop_asked_ = true;
  Feed(StopAsked{std::move(message)});
  return runs;
}

void Session::EndAsNodeLeaves(std::string why) { Feed(StopAsked{std::move(why), /*leaves=*/true}); }

// ---- what the core decides ----------------------------------------------------------------

void Session::Feed(const Event& event) {
  const std::shared_ptr<bool> alive = alive_;
  std::vector<Action> actions = core_.OnEvent(agent_.loop.Now(), event);
  for (Action& action : actions) {
    Do(action);
    if (!*alive) return;
  }
  deadline_.At(core_.NextDeadline(), [this] { Feed(Tick{}); });
}

void Session::Do(Action& action) {
  const Overload carry_out{
      [this](SendEvent& up) { announcements_.Say(std::move(up.event)); },
      [this](SendShepherd& down) { ToShepherd(down.request); },
      [this](OpenChannels&) { Open(); },
      [this](TellAgain&) { SayAgain(); },
      [this](PrepareStart&) { Prepare(); },
      [this](session::PrepareToBeLeft&) { PrepareToBeLeft(); },
      [this](LookAtGpus&) { gpus_.Look(); },
      [this](GiveBack& give) {
        gpus_.OnGivenBack();
        holdings_.GiveBack(give.gpus);
      },
      [this](KillLeftovers&) {
        job_.leftovers().End(holdings_.Holder(), [this] { Feed(LeftoversGone{}); });
      },
      [this](SkipContainers&) { job_.leftovers().SkipContainers(); },
      [this](End& end) { Stop(std::move(end.status)); },
      [this](auto& before_the_start) { joining_.Do(before_the_start); },
  };
  std::visit(carry_out, action);
}

// Channel 0 at once: it must not wait for a shepherd that is stopped.
void Session::Open() {
  absl::Status open = launcher_.Open();
  if (open.ok()) {
    open = shepherd_->Attach(launcher_.greeting().job(), core_.most_silence(),
                             core_.hello().generation());
  }
  if (!open.ok()) Feed(LauncherBroke{std::move(open)});
}

void Session::Prepare() {
  if (joining_.Prepare()) return;
  // The job is off. A shepherd that has no part exits when it is told to end.
  dropped_ = true;
  v1::ShepherdRequest request;
  request.mutable_end_job();
  ToShepherd(request);
}

void Session::PrepareToBeLeft() {
  if (agent_.successor == nullptr) return Feed(ReadyToBeLeft{});
  if (const absl::Status may = Joining::MayBeLeft(); !may.ok()) {
    return Feed(ReadyToBeLeft{std::string(may.message()), {}});
  }
  agent_.successor->find_place([this, alive = alive_](absl::StatusOr<std::string> place) {
    if (!*alive) return;
    const absl::Status ready =
        place.ok() ? joining_.PrepareToBeLeft(*place, job_.Used()) : place.status();
    if (!ready.ok()) return Feed(ReadyToBeLeft{std::string(ready.message()), {}});
    Feed(ReadyToBeLeft{"", job_.logs().KeepTaken()});
  });
}

void Session::ToShepherd(const v1::ShepherdRequest& request) {
  if (request.has_end_job()) job_.SetStopping();
  shepherd_->Send(request).IgnoreError();  // some bytes
}

// The Welcome first: it takes I/O to read the inventory.
void Session::SayAgain() {
  const uint64_t number = announcements_.AwaitWelcome(gpus_.errors());
  joining_.WelcomeAgain(
      [this, number](const v1::SessionEvent& welcome) { announcements_.Welcome(number, welcome); });
}

void Session::Warn(const std::string& message) {
  v1::SessionEvent event;
  event.mutable_warning()->set_message(message);
  announcements_.Say(std::move(event));
}

void Session::Stop(absl::Status status) {
  deadline_.Cancel();
  // First: when the launcher hears of it and ends, nothing is left here.
  holdings_.RemoveDirectory();
  launcher_.Finish(std::move(status));
  // The owner destroys us in here.
  std::exchange(on_ended_, nullptr)();
}

}  // namespace dtrain::session
