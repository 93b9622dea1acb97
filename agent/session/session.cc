// SPDX-License-Identifier: Apache-2.0
#include "agent/session/session.h"

#include <chrono>
#include <utility>
#include <variant>

#include "absl/time/clock.h"
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

Session::Session(Surroundings surroundings, Owner owner, SessionCore core,
                 std::unique_ptr<ShepherdChannel> shepherd, loop::Task on_ended)
    : agent_(std::move(surroundings)),
      owner_(std::move(owner)),
      since_unix_nanos_(absl::GetCurrentTimeNanos()),
      core_(std::move(core)),
      on_ended_(std::move(on_ended)),
      holdings_(agent_, owner_.name, core_.hello()),
      shepherd_(std::move(shepherd)),
      job_(
          agent_, core_.hello(), owner_.uid, *shepherd_,
          [this](const Event& event) { Feed(event); },
          [this](const std::string& what) { Warn(what); }),
      joining_(agent_, core_.hello(), holdings_, *shepherd_,
               {[this](const v1::SessionEvent& event) { launcher_.Send(event); },
                [this](std::vector<v1::Gpu> gpus) {
                  Feed(GpusSeen{std::move(gpus), "", {}});
                }}),
      launcher_(agent_.loop, LauncherHandlers()),
      deadline_(agent_.loop) {
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

void Session::Resume(std::shared_ptr<Stream> stream, const v1::Hello& hello) {
  launcher_.Greet(hello);
  launcher_.Listen(std::move(stream));
  Feed(Resumed{hello});
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

v1::JobOnNode Session::Describe() const {
  v1::JobOnNode job = job_.Describe(core_.state(), core_.away());
  job.set_job_id(core_.hello().job_id());
  job.set_attempt(core_.hello().attempt());
  job.set_owner(owner_.name);
  job.set_uid(owner_.uid);
  job.set_since_unix_nanos(since_unix_nanos_);
  return job;
}

bool Session::StopBy(std::string message) {
  const bool runs = core_.state() <= SessionState::kRunning;
  Feed(StopAsked{std::move(message)});
  return runs;
}

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
      [this](SendEvent& up) { ToLauncher(up.event); },
      [this](SendShepherd& down) { ToShepherd(down.request); },
      [this](OpenChannels&) { Open(); },
      [this](PrepareStart&) { Prepare(); },
      [this](LookAtGpus&) { Look(); },
      [this](GiveBack& give) { holdings_.GiveBack(give.gpus); },
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
  if (open.ok()) open = shepherd_->Attach(launcher_.greeting().job(), core_.most_silence());
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

void Session::ToShepherd(const v1::ShepherdRequest& request) {
  if (request.has_end_job()) job_.SetStopping();
  shepherd_->Send(request).IgnoreError();  // some bytes
}

void Session::Look() {
  agent_.readers.gpus([this, alive = alive_](inventory::GpuReport report) {
    if (!*alive) return;
    const std::vector<uint32_t> ours = shepherd_->processes().Living();
    Feed(GpusSeen{std::move(report.gpus), std::move(report.error), ours});
  });
}

void Session::ToLauncher(v1::SessionEvent& event) {
  // The launcher compares our clocks by it.
  if (event.has_heartbeat()) {
    event.mutable_heartbeat()->set_unix_nanos(absl::GetCurrentTimeNanos());
  }
  launcher_.Send(event);
}

void Session::Warn(const std::string& message) {
  v1::SessionEvent event;
  event.mutable_warning()->set_message(message);
  launcher_.Send(event);
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
