// SPDX-License-Identifier: Apache-2.0
// Every event in every state, and what each state comes to when nobody says anything.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "agent/session/session_core.h"

namespace dtrain::session {
namespace {

using std::chrono::seconds;

// `alone`: its launcher has been given up.
struct Column {
  SessionState state;
  bool alone = false;
};
constexpr Column kColumns[] = {{SessionState::kNew},
                               {SessionState::kJoined},
                               {SessionState::kRunning},
                               {SessionState::kOrphaned, true},
                               {SessionState::kReaping},
                               {SessionState::kReleasing},
                               {SessionState::kFinished},
                               {SessionState::kReaping, true},
                               {SessionState::kReleasing, true}};

class SessionTableTest : public ::testing::Test {
 protected:
  struct Session {
    SessionCore core;
    TimePoint now;
  };
  static v1::Hello Greeting(bool same_machine = false) {
    v1::Hello hello;
    hello.set_protocol(1);
    hello.set_build("b");
    hello.set_job_id("job");
    hello.set_lease_ms(10'000);
    hello.set_grace_ms(5'000);
    hello.set_same_machine(same_machine);
    return hello;
  }
  static Event Said(const std::function<void(v1::SessionRequest&)>& set) {
    Request out;
    set(out.request);
    return out;
  }
  // On the wrong channel.
  static v1::SessionRequest OfTheShepherd() {
    v1::JobRequest stop;
    stop.mutable_stop();
    v1::SessionRequest request;
    EXPECT_TRUE(request.ParseFromString(stop.SerializeAsString()));
    return request;
  }
  static GpusSeen Gpus(uint64_t used) {
    GpusSeen seen;
    seen.gpus.emplace_back().set_uuid("GPU-0");
    seen.gpus[0].set_memory_used_bytes(used);
    return seen;
  }
  static const std::map<std::string, Event>& Events() {
    static const auto* const events = new std::map<std::string, Event>{
        {"hello", Said([](auto& r) { *r.mutable_hello() = Greeting(); })},
        {"probe", Said([](auto& r) { r.mutable_probe(); })},
        {"hold_ports", Said([](auto& r) { r.mutable_hold_ports(); })},
        {"reserve", Said([](auto& r) { r.mutable_reserve(); })},
        {"look_again", Said([](auto& r) { r.mutable_look_again(); })},
        {"end_job", Said([](auto& r) { r.mutable_end_job(); })},
        {"keep_job", Said([](auto& r) { r.mutable_keep_job(); })},
        {"heartbeat", Said([](auto& r) { r.mutable_heartbeat(); })},
        {"goodbye", Said([](auto& r) { r.mutable_goodbye(); })},
        {"shepherds", Said([](auto& r) { r = OfTheShepherd(); })},
        {"nothing", Said([](auto&) {})},
        {"heard", Heard{}},
        {"job_frame", JobFrame{true, true}},
        {"job_beat", JobFrame{false, true}},
        {"resumed", Resumed{Greeting()}},
        {"taken_over", TakenOver{Greeting()}},
        {"stream_ends", LauncherGone{}},
        {"broke", LauncherBroke{absl::DataLossError("a gap")}},
        {"reported", Reported{{"GPU-0"}, {4711}}},
        {"answers", ShepherdAnswers{}},
        {"job_ended", JobEnded{}},
        {"shepherd_gone", ShepherdGone{"killed"}},
        {"leftovers_gone", LeftoversGone{}},
        {"gpus_free", Gpus(0)},
        {"gpus_held", Gpus(uint64_t{1} << 30)},
        {"stop_asked", StopAsked{"by alice"}},
        {"ready", ReadyToBeLeft{}},
        {"tick", Tick{}},
    };
    return *events;
  }

  Session Reach(Column column, bool same_machine = false) {
    const TimePoint now{seconds(1000)};
    Session session{SessionCore(Identity{1, "b", resident_}, now), now};
    const auto feed = [&](const Event& event) { session.core.OnEvent(now, event); };
    const auto ask = [&](const std::function<void(v1::SessionRequest&)>& set) { feed(Said(set)); };
    if (column.state == SessionState::kNew) return session;
    ask([&](auto& r) { *r.mutable_hello() = Greeting(same_machine); });
    if (column.state == SessionState::kJoined) return session;
    feed(Gpus(0));
    ask([](auto& r) { r.mutable_reserve()->add_gpu_uuids("GPU-0"); });
    feed(JobFrame{true, false});
    if (column.alone) ask([](auto& r) { r.mutable_goodbye(); });
    if (column.state == SessionState::kReaping) feed(ShepherdGone{"killed"});
    if (column.state >= SessionState::kReleasing) feed(JobEnded{});
    if (column.state == SessionState::kFinished) feed(Gpus(0));
    EXPECT_EQ(session.core.state(), column.state);
    return session;
  }

  static char Letter(SessionState state) { return "njroRlfe"[static_cast<size_t>(state)]; }

  // What an event does, in a letter: see kGrid.
  static char Effect(Session& session, const Event& event) {
    const SessionState before = session.core.state();
    const bool awaited = session.core.CanResume(Greeting());
    const bool away = session.core.away();
    const std::vector<Action> actions = session.core.OnEvent(session.now, event);
    if (session.core.state() != before) {
      const auto* const end = actions.empty() ? nullptr : std::get_if<End>(&actions.back());
      EXPECT_EQ(end != nullptr, session.core.state() == SessionState::kEnded);
      const bool illegal = end != nullptr && absl::StrContains(end->status.message(), "not take");
      return illegal ? 'X' : Letter(session.core.state());
    }
    if (!actions.empty()) return '=';
    if (session.core.away() != away) return 'a';
    return session.core.CanResume(Greeting()) != awaited ? 'g' : '.';
  }

  void Check(const char* grid) {
    std::istringstream lines(grid);
    size_t rows = 0;
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string name;
      if (!(words >> name)) continue;
      ASSERT_EQ(Events().count(name), 1u) << name;
      ++rows;
      for (const Column& column : kColumns) {
        char expected = 0;
        ASSERT_TRUE(words >> expected) << name;
        if (expected == '-') continue;  // there is no such state
        SCOPED_TRACE(absl::StrCat(name, " while ", StateName(column.state),
                                  column.alone ? ", its launcher given up" : ""));
        Session session = Reach(column);
        EXPECT_EQ(Effect(session, Events().at(name)), expected);
      }
    }
    EXPECT_EQ(rows, Events().size());
  }

  bool resident_ = true;
};

// The new state by its letter, of ended e, or X where the launcher must not say so. Else: '=' it
// does something, 'a' the launcher is away, 'g' it was given up, '.' nothing is to be seen.
//
// In the last two columns the launcher was given up.
constexpr char kOfAResidentAgent[] = R"(
                  new joined running orphaned reaping releasing finished  reaping releasing
  hello            j    X      X        .        X        X        X         .        .
  probe            X    =      X        .        X        X        X         .        .
  hold_ports       X    =      X        .        X        X        X         .        .
  reserve          X    =      X        .        X        X        X         .        .
  look_again       X    =      X        .        X        X        X         .        .
  end_job          X    .      =        .        .        .        .         .        .
  keep_job         X    X      =        .        .        .        .         .        .
  heartbeat        X    .      .        .        .        .        .         .        .
  goodbye          X    e      o        .        g        e        e         .        .
  shepherds        X    X      X        .        X        X        X         .        .
  nothing          X    X      X        .        X        X        X         .        .
  heard            .    .      .        .        .        .        .         .        .
  job_frame        .    r      .        .        .        .        .         .        .
  job_beat         .    .      .        .        .        .        .         .        .
  resumed          .    =      =        .        =        =        =         .        .
  taken_over       .    =      =        .        =        =        =         .        .
  stream_ends      e    a      a        .        a        a        a         a        a
  broke            e    e      e        e        e        e        e         e        e
  reported         .    .      .        .        .        .        .         .        .
  answers          .    .      .        .        .        .        .         .        .
  job_ended        .    .      l        l        .        .        .         .        .
  shepherd_gone    R    R      R        R        .        =        =         .        .
  leftovers_gone   .    .      .        .        l        .        .         l        .
  gpus_free        .    .      .        .        .        f        .         .        e
  gpus_held        .    .      .        .        .        .        .         .        .
  stop_asked       .    =      =        .        =        =        =         .        .
  ready            .    .      =        .        .        =        =         .        .
  tick             .    .      .        .        .        .        .         .        .
)";

// Its sessions end with their streams, and it waits for no GPUs once its launcher is gone.
constexpr char kOfAnAgentOfOneJob[] = R"(
                  new joined running orphaned reaping releasing finished  reaping releasing
  hello            j    X      X        .        X        X        X         .        -
  probe            X    =      X        .        X        X        X         .        -
  hold_ports       X    =      X        .        X        X        X         .        -
  reserve          X    =      X        .        X        X        X         .        -
  look_again       X    =      X        .        X        X        X         .        -
  end_job          X    .      =        .        .        .        .         .        -
  keep_job         X    X      =        .        .        .        .         .        -
  heartbeat        X    .      .        .        .        .        .         .        -
  goodbye          X    e      o        .        g        e        e         .        -
  shepherds        X    X      X        .        X        X        X         .        -
  nothing          X    X      X        .        X        X        X         .        -
  heard            .    .      .        .        .        .        .         .        -
  job_frame        .    r      .        .        .        .        .         .        -
  job_beat         .    .      .        .        .        .        .         .        -
  resumed          .    =      =        .        =        =        =         .        -
  taken_over       .    =      =        .        =        =        =         .        -
  stream_ends      e    e      o        .        g        e        e         .        -
  broke            e    e      e        e        e        e        e         e        -
  reported         .    .      .        .        .        .        .         .        -
  answers          .    .      .        .        .        .        .         .        -
  job_ended        .    .      l        e        .        .        .         .        -
  shepherd_gone    R    R      R        R        .        .        .         .        -
  leftovers_gone   .    .      .        .        l        .        .         e        -
  gpus_free        .    .      .        .        .        f        .         .        -
  gpus_held        .    .      .        .        .        .        .         .        -
  stop_asked       .    =      =        .        =        =        =         .        -
  ready            .    .      =        .        .        =        =         .        -
  tick             .    .      .        .        .        .        .         .        -
)";

// A table's first line names its columns.
const char* Rows(const char* grid) { return std::strchr(grid + 1, '\n'); }

TEST_F(SessionTableTest, EveryEventInEveryStateOfAResidentAgent) { Check(Rows(kOfAResidentAgent)); }

TEST_F(SessionTableTest, EveryEventInEveryStateOfAnAgentOfOneJob) {
  resident_ = false;
  Check(Rows(kOfAnAgentOfOneJob));
}

// A launcher hands its job over to another, which comes to it through another agent.
TEST_F(SessionTableTest, AKeptJobIsLeftToAnotherAgentWhenItsStreamEnds) {
  resident_ = false;
  Session session = Reach({SessionState::kRunning});
  const auto feed = [&](const Event& event) { return session.core.OnEvent(session.now, event); };
  ReadyToBeLeft refused{"its disk is full", {}};
  const std::vector<Action> told = feed(refused);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(std::get<SendEvent>(told[0]).event.kept().refused(), "its disk is full");
  EXPECT_FALSE(session.core.MayBeLeft());
  ReadyToBeLeft ready;
  ready.sent.add_streams()->set_offset(7);
  EXPECT_EQ(std::get<SendEvent>(feed(ready)[0]).event.kept().sent().streams(0).offset(), 7u);
  EXPECT_TRUE(session.core.MayBeLeft());
  EXPECT_TRUE(feed(LauncherGone{}).empty());  // its workers are not ended
  EXPECT_EQ(session.core.state(), SessionState::kRunning);
}

TEST_F(SessionTableTest, AKeptJobWhoseShepherdDiesIsEndedAsAnyOther) {
  resident_ = false;
  Session session = Reach({SessionState::kRunning});
  session.core.OnEvent(session.now, ReadyToBeLeft{});
  session.core.OnEvent(session.now, ShepherdGone{"killed"});
  EXPECT_FALSE(session.core.MayBeLeft());
  session.core.OnEvent(session.now, LauncherGone{});
  EXPECT_EQ(session.core.state(), SessionState::kReaping);
}

TEST_F(SessionTableTest, AKeptJobThatIsToEndIsNotLeft) {
  resident_ = false;
  for (const bool by_launcher : {true, false}) {
    Session session = Reach({SessionState::kRunning});
    session.core.OnEvent(session.now, ReadyToBeLeft{});
    session.core.OnEvent(session.now, by_launcher ? Said([](auto& r) { r.mutable_end_job(); })
                                                  : Event(StopAsked{"by alice"}));
    EXPECT_FALSE(session.core.MayBeLeft());
    session.core.OnEvent(session.now, LauncherGone{});
    EXPECT_EQ(session.core.state(), SessionState::kOrphaned);
  }
}

// The launcher has stayed, as another host refused: the job ends with its stream again, and the
// shepherd, which would wait for another agent, is let go.
TEST_F(SessionTableTest, AJobIsKeptForSecondsOnly) {
  resident_ = false;
  Session session = Reach({SessionState::kRunning});
  session.core.OnEvent(session.now, ReadyToBeLeft{});
  session.now += seconds(29);
  session.core.OnEvent(session.now, Heard{});
  EXPECT_TRUE(session.core.MayBeLeft());
  session.now += seconds(1);
  session.core.OnEvent(session.now, Heard{});
  EXPECT_FALSE(session.core.MayBeLeft());
  session.core.OnEvent(session.now, LauncherGone{});
  EXPECT_EQ(session.core.state(), SessionState::kOrphaned);
}

// Its shepherd would wait for the next one.
TEST_F(SessionTableTest, TheShepherdOfAKeptJobIsLetGoAtItsEnd) {
  resident_ = false;
  Session session = Reach({SessionState::kFinished});
  session.core.OnEvent(session.now, ReadyToBeLeft{});
  const std::vector<Action> actions =
      session.core.OnEvent(session.now, Said([](auto& r) { r.mutable_goodbye(); }));
  ASSERT_EQ(actions.size(), 2u);
  EXPECT_TRUE(std::get<SendShepherd>(actions[0]).request.has_release());
}

TEST_F(SessionTableTest, WhatALauncherSaysRenewsItsLeaseUnlessItWasGivenUp) {
  for (const char* name :
       {"heartbeat", "end_job", "heard", "job_frame", "job_beat", "resumed", "taken_over"}) {
    for (const Column& column : kColumns) {
      if (column.state == SessionState::kNew || column.state == SessionState::kOrphaned) continue;
      SCOPED_TRACE(absl::StrCat(name, " while ", StateName(column.state)));
      Session session = Reach(column);
      const auto run = [&](Duration duration) {
        for (const TimePoint end = session.now + duration; session.now < end;) {
          session.now = std::min(end, session.core.NextDeadline());
          session.core.OnEvent(session.now, Tick{});
          // Not what this is about.
          session.core.OnEvent(session.now, ShepherdAnswers{});
          if (column.state == SessionState::kReleasing) session.core.OnEvent(session.now, Gpus(0));
        }
      };
      run(seconds(6));
      session.core.OnEvent(session.now, Events().at(name));
      run(seconds(6));
      EXPECT_EQ(session.core.CanResume(Greeting()), !column.alone);
    }
  }
}

TEST_F(SessionTableTest, NothingIsTakenAfterTheEnd) {
  for (const auto& [name, event] : Events()) {
    Session session = Reach({SessionState::kNew});
    session.core.OnEvent(session.now, LauncherGone{});
    ASSERT_EQ(session.core.state(), SessionState::kEnded);
    EXPECT_TRUE(session.core.OnEvent(session.now, event).empty()) << name;
    EXPECT_EQ(session.core.NextDeadline(), kNever);
  }
}

TEST_F(SessionTableTest, NoStateIsWithoutADeadline) {
  for (const bool resident : {true, false}) {
    resident_ = resident;
    for (const bool same_machine : {true, false}) {
      for (const Column& column : kColumns) {
        if (!resident && column.alone && column.state == SessionState::kReleasing) continue;
        Session session = Reach(column, same_machine);
        EXPECT_LE(session.core.NextDeadline(), session.now + seconds(60))
            << StateName(column.state) << (column.alone ? " alone" : "");
      }
    }
  }
}

// Nobody says anything any more, not even what was asked for comes: lease 10 s, grace 5 s.
TEST_F(SessionTableTest, WhatSilenceComesTo) {
  struct Row {
    Column column;
    bool resident;
    int seconds;
    SessionState then;
  };
  const Row rows[] = {
      {{SessionState::kNew}, true, 30, SessionState::kEnded},
      {{SessionState::kJoined}, true, 10, SessionState::kEnded},
      {{SessionState::kRunning}, true, 10, SessionState::kOrphaned},
      {{SessionState::kOrphaned, true}, true, 15, SessionState::kReaping},
      {{SessionState::kReleasing}, true, 10, SessionState::kEnded},
      {{SessionState::kReleasing, true}, true, 10, SessionState::kEnded},
      {{SessionState::kReleasing}, false, 10, SessionState::kEnded},
      {{SessionState::kFinished}, true, 10, SessionState::kEnded},
  };
  for (const Row& row : rows) {
    resident_ = row.resident;
    Session session = Reach(row.column);
    const TimePoint start = session.now;
    while (session.core.state() == row.column.state && session.core.NextDeadline() != kNever) {
      session.now = session.core.NextDeadline();
      session.core.OnEvent(session.now, Tick{});
    }
    EXPECT_EQ(session.core.state(), row.then) << StateName(row.column.state);
    EXPECT_EQ(session.now, start + seconds(row.seconds)) << StateName(row.column.state);
  }
}

// A container runtime's commands may hang, as many as its user likes. Processes::EndAll always
// comes to its end.
TEST_F(SessionTableTest, WhatADeadShepherdLeftHasAMinuteAndThenOnlyProcessesAreEnded) {
  for (const bool alone : {false, true}) {
    Session session = Reach({SessionState::kReaping, alone});
    const TimePoint start = session.now;
    int skipped = 0;
    while (session.core.NextDeadline() != kNever && session.now < start + seconds(200)) {
      session.now = session.core.NextDeadline();
      for (const Action& action : session.core.OnEvent(session.now, Tick{})) {
        if (!std::holds_alternative<SkipContainers>(action)) continue;
        ++skipped;
        EXPECT_EQ(session.now, start + seconds(60));
      }
      if (!alone) session.core.OnEvent(session.now, Heard{});
    }
    EXPECT_EQ(skipped, 1);
    EXPECT_EQ(session.core.state(), SessionState::kReaping);
    session.core.OnEvent(session.now, LeftoversGone{});
    EXPECT_EQ(session.core.state(), SessionState::kReleasing);
  }
}

}  // namespace
}  // namespace dtrain::session
