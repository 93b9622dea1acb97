// SPDX-License-Identifier: Apache-2.0
// What `dtrain attach` and `dtrain logs` show of a detached job's output.
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "launcher/detached/log_times.h"
#include "tests/component/history/jobs_fixture.h"

namespace dtrain::history {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

class OutputTest : public JobsTest {
 protected:
  static std::string Lines(int from, int to) {
    std::string text;
    for (int i = from; i < to; ++i) absl::StrAppend(&text, "line ", i, "\n");
    return text;
  }
};

TEST_F(OutputTest, AttachShowsTheLastLinesThenTheReportOfAnEndedJob) {
  const auto job = Accept("dtrain-abc");
  Runs(job);
  Write(job, 0, Lines(0, 100));
  Write(job, 1, "it went wrong\n", true);
  End(job, 7);
  const Ran ran = Run({"attach", "dtrain-abc"});
  EXPECT_EQ(ran.code, 7);
  EXPECT_THAT(ran.out, AllOf(HasSubstr("[0] line 80\n"), HasSubstr("[0] line 99\n"),
                             Not(HasSubstr("line 79\n"))));
  EXPECT_THAT(ran.err, AllOf(HasSubstr("[1] it went wrong\n"),
                             HasSubstr("dtrain: rank 1 on node2 (pid 11) exited with code 7"),
                             HasSubstr("dtrain: exit code 7\n")));
  EXPECT_EQ(Run({"attach", "--tail", "0", "dtrain-abc"}).out, "");
}

TEST_F(OutputTest, AttachFollowsAcrossAttempts) {
  const auto job = Accept("dtrain-abc");
  Runs(job);
  const os::FileLock lock = Hold(job);
  Write(job, 0, "one\n");
  Program program = Start({"attach"});
  ASSERT_TRUE(program.Prints("[0] one\n"));
  Write(job, 1, "two, in");
  Write(job, 0, "three\n");
  ASSERT_TRUE(program.Prints("[0] three\n"));
  EXPECT_THAT(program.out, Not(HasSubstr("two")));
  Write(job, 1, " two parts\n");
  ASSERT_TRUE(program.Prints("[1] two, in two parts\n"));
  Write(job, 1, "no end");
  Restarts(job, 0, "why");
  Runs(job, 1, 3);
  Write(job, 2, "four\n", false, 1);
  ASSERT_TRUE(program.Prints("[2] four\n"));
  EXPECT_THAT(program.out, HasSubstr("[1] no end\n[2] four\n"));
  EXPECT_TRUE(program.Prints("dtrain: attempt 1\n")) << program.err;
  Write(job, 0, "last\n", false, 1);
  End(job, 0);
  EXPECT_EQ(program.Wait(), 0);
  EXPECT_THAT(program.out, HasSubstr("[0] last\n"));
}

TEST_F(OutputTest, CtrlCLeavesTheJobAlone) {
  const auto job = Accept("dtrain-abc");
  Runs(job);
  const os::FileLock lock = Hold(job);
  Write(job, 0, "one\n");
  Program program = Start({"attach", "dtrain-abc"});
  ASSERT_TRUE(program.Prints("one\n"));
  program.Signal(SIGINT);
  EXPECT_EQ(program.Wait(), 0);
  EXPECT_THAT(program.err, HasSubstr("left; dtrain-abc goes on; `dtrain stop dtrain-abc` ends it"));
  EXPECT_FALSE(job.HasSummary());
}

TEST_F(OutputTest, AReaderThatClosesStdoutHarmsNobody) {
  const auto job = Accept("dtrain-abc");
  Runs(job);
  const os::FileLock lock = Hold(job);
  for (const char* command : {"attach", "logs"}) {
    Write(job, 0, "one\n");
    Program program = Start(command == std::string("logs") ? Strings{"logs", "-f", "dtrain-abc"}
                                                           : Strings{"attach", "dtrain-abc"});
    ASSERT_TRUE(program.Prints("one\n"));
    program.CloseStdout();
    Write(job, 0, "two\n");
    EXPECT_EQ(program.Wait(), 141) << program.err;
    EXPECT_FALSE(job.HasSummary());
  }
}

// Of every command, from one line to more than stdio holds.
TEST_F(OutputTest, OutputThatIsNotTakenIsAnError) {
  const auto job = Accept("dtrain-abc");
  Runs(job);
  Write(job, 0, Lines(0, 100000));
  End(job, 0);
  for (const Strings& args : std::vector<Strings>{{"--help"},
                                                  {"--version"},
                                                  {"version", "--verbose"},
                                                  {"ps"},
                                                  {"ps", "-a", "--json"},
                                                  {"history"},
                                                  {"show", "dtrain-abc"},
                                                  {"status", "--json", "dtrain-abc"},
                                                  {"wait", "--json", "dtrain-abc"},
                                                  {"logs", "dtrain-abc"},
                                                  {"logs", "--json", "dtrain-abc"},
                                                  {"attach", "dtrain-abc"},
                                                  {"attach", "--json", "dtrain-abc"},
                                                  {"prune"},
                                                  {"env"},
                                                  {"completion", "bash"},
                                                  {"man"},
                                                  {"migrate", "--help"},
                                                  {"bench", "--help"},
                                                  {"torchrun", "--help"},
                                                  {"launch", "--dry-run", "-np", "1", "true"}}) {
    const Ran ran = Run(args, "/dev/full");
    EXPECT_EQ(ran.code, 207) << args[0] << ran.err;
    // Of the earlier of many writes the reason is not known any more.
    EXPECT_THAT(ran.err,
                AnyOf(HasSubstr(": No space left on device\n"), HasSubstr("its disk is full\n")))
        << args[0];
  }
}

TEST_F(OutputTest, StderrThatIsNotTakenIsAnError) {
  const auto job = Accept("dtrain-abc");
  Runs(job);
  Write(job, 0, "out\n");
  Write(job, 0, "err\n", true);
  End(job, 0);
  const std::string logs =
      absl::StrCat("XDG_STATE_HOME=", dir_, "/state XDG_RUNTIME_DIR=", dir_, "/run HOME=", dir_,
                   " '", ProgramPath("dtrain"), "' logs -r0 dtrain-abc > ", dir_, "/out 2> ");
  int status = std::system(absl::StrCat(logs, "/dev/full").c_str());
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 207) << status;
  // The rest was printed.
  std::stringstream out;
  out << std::ifstream(dir_ + "/out").rdbuf();
  EXPECT_EQ(out.str(), "out\n");
  status = std::system(absl::StrCat(logs, dir_, "/err").c_str());
  EXPECT_EQ(status, 0);
}

TEST_F(OutputTest, NoJobIsAcceptedWhoseIdCannotBeWritten) {
  const Ran ran = Run({"launch", "-d", "-np", "1", "true"}, "/dev/full");
  EXPECT_EQ(ran.code, 207);
  EXPECT_THAT(ran.err, HasSubstr("write the job's id to stdout: No space left on device\n"));
  EXPECT_FALSE(fs::exists(jobs_->place()));
}

TEST_F(OutputTest, AttachEndsWhenTheFolderIsGone) {
  const auto job = Accept("dtrain-abc");
  Runs(job);
  const os::FileLock lock = Hold(job);
  Write(job, 0, "one\n");
  Program program = Start({"attach", "dtrain-abc"});
  Program logs = Start({"logs", "-f", "dtrain-abc"});
  ASSERT_TRUE(program.Prints("one\n"));
  ASSERT_TRUE(logs.Prints("one\n"));
  fs::rename(job.path(), dir_ + "/away");
  EXPECT_EQ(program.Wait(), 1);
  EXPECT_THAT(program.err, HasSubstr("was removed"));
  EXPECT_EQ(logs.Wait(), 1);
  EXPECT_THAT(logs.err, HasSubstr("was removed"));
}

TEST_F(OutputTest, AttachAsJson) {
  const auto job = Accept("dtrain-abc");
  Runs(job);
  Write(job, 1, "a\xff\nb", true);
  End(job, 7);
  const Ran ran = Run({"attach", "--json", "dtrain-abc"});
  EXPECT_EQ(ran.code, 7);
  std::istringstream lines(ran.out);
  std::string line;
  std::vector<Json> all;
  while (std::getline(lines, line)) all.push_back(Json::parse(line));
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0], Json({{"attempt", 0}, {"rank", 1}, {"stream", "stderr"}, {"line", "a\uFFFD"}}));
  EXPECT_EQ(all[1]["line"], "b");
  EXPECT_EQ(all[2]["exit_code"], 7);
}

TEST_F(OutputTest, AttachUsesTheOutputFlagsOfTheLaunch) {
  const auto job =
      Accept("dtrain-abc", "", {"launch", "--tag-output=host", "-np", "2", "python3", "t.py"});
  Runs(job);
  const os::FileLock lock = Hold(job);
  Write(job, 1, "one\n");
  Program program = Start({"attach", "dtrain-abc"});
  EXPECT_TRUE(program.Prints("[node2:1] one\n")) << program.out;
}

// Of an ended job, too, whose environment is not kept; nor the files of one that was in the
// foreground.
TEST_F(OutputTest, AttachUsesOutputFlagsThatWereVariables) {
  v1::Spec spec;
  spec.set_job_id("dtrain-abc");
  for (const char* word : {"launch", "-np", "2", "python3", "t.py"}) spec.add_argv(word);
  for (const auto& [name, value] :
       {std::pair("DTRAIN_TAG_OUTPUT", "host"), std::pair("DTRAIN_CONFIG", "/gone/config.toml")}) {
    v1::EnvVar& variable = *spec.add_flag_variables();
    variable.set_name(name);
    variable.set_value(value);
  }
  spec.set_working_directory(dir_ + "/work");
  const auto job = jobs_->Accept(spec);
  ASSERT_TRUE(job.ok()) << job.status();
  Runs(job->folder);
  Write(job->folder, 1, "one\n");
  End(job->folder, 0);
  EXPECT_EQ(Run({"attach", "dtrain-abc"}).out, "[node2:1] one\n");
}

TEST_F(OutputTest, FilesOfRanksThatTheJobDoesNotHaveAreIgnored) {
  const auto job = Accept("dtrain-abc");
  Runs(job);
  const os::FileLock lock = Hold(job);
  Write(job, 4294967295, "strange\n");
  Write(job, 0, "one\n");
  Program program = Start({"attach", "dtrain-abc"});
  ASSERT_TRUE(program.Prints("[0] one\n"));
  End(job, 0);
  EXPECT_EQ(program.Wait(), 0);
  EXPECT_THAT(program.out, Not(HasSubstr("strange")));
}

TEST_F(OutputTest, LogsAreThoseOfOneRank) {
  const auto job = Accept("dtrain-abc", "train");
  Runs(job);
  Write(job, 0, Lines(0, 5000));
  Write(job, 1, "out\n");
  Write(job, 1, "err", true);
  Write(job, 1, "later\n", false, 1);
  for (const bool ended : {false, true}) {
    if (ended) End(job, 7);
    EXPECT_EQ(Run({"logs", "--attempt", "0", "-r0", "train"}).out, Lines(0, 5000));
    EXPECT_EQ(Run({"logs", "--attempt", "0", "-r0", "--tail", "3", "train"}).out,
              Lines(4997, 5000));
    const Ran both = Run({"logs", "--attempt", "0", "--rank", "1", "--tail", "100", "dtrain-abc"});
    EXPECT_EQ(both.out, "out\n");
    EXPECT_EQ(both.err, "err");
    EXPECT_EQ(Run({"logs", "--attempt=0", "-r1", "--stream=stderr", "--tail=1", "dtrain-abc"}).out,
              "err");
    EXPECT_EQ(Run({"logs", "-r1", "dtrain-abc"}).out, "later\n");
    Ran ran = Run({"logs", "--attempt", "0", "--rank", "99", "dtrain-abc"});
    EXPECT_EQ(ran.code, 1);
    EXPECT_THAT(ran.err, HasSubstr("dtrain-abc has no rank 99: it has 2 ranks"));
    ran = Run({"logs", "--attempt", "7", "dtrain-abc"});
    EXPECT_EQ(ran.code, 1);
    EXPECT_THAT(ran.err, HasSubstr("no output of an attempt 7: attempts 0 to 1"));
  }
  const Json json = Json::parse(Run({"logs", "-r1", "--json", "dtrain-abc"}).out);
  EXPECT_EQ(json, Json({{"rank", 1}, {"stream", "stdout"}, {"line", "later"}}));
  EXPECT_EQ(Run({"logs", "--tail", "x", "dtrain-abc"}).code, 2);
}

TEST_F(OutputTest, LogsHaveAllRanksAndBothStreamsTheFailedRankFirst) {
  const auto job = Accept("dtrain-abc");
  Runs(job);
  Write(job, 0, "zero\n");
  Write(job, 1, "one\nno end");
  Write(job, 1, "it went wrong\n", true);
  {
    const os::FileLock lock = Hold(job);
    EXPECT_EQ(Run({"logs", "dtrain-abc"}).out,
              "[0] zero\n[1] one\n[1 stderr] it went wrong\n[1] no end\n");
    EXPECT_EQ(Run({"logs", "--stream", "stderr", "dtrain-abc"}).out, "[1 stderr] it went wrong\n");
    EXPECT_EQ(Run({"logs", "--tail", "1", "dtrain-abc"}).out,
              "[0] zero\n[1 stderr] it went wrong\n[1] no end\n");
  }
  End(job, 7);
  EXPECT_EQ(Run({"logs", "dtrain-abc"}).out,
            "[1] one\n[1 stderr] it went wrong\n[1] no end\n[0] zero\n");
  EXPECT_THAT(Run({"logs", "--json", "dtrain-abc"}).out,
              HasSubstr(R"({"rank":1,"stream":"stderr","line":"it went wrong"})"));
}

TEST_F(OutputTest, LogsHaveTheTimesAndTheOrderInWhichLinesCame) {
  const auto job = Accept("dtrain-abc");
  Runs(job);
  const int64_t second = 1'000'000'000;
  const int64_t begin = 1764205000 * second;  // 2025-11-27 00:56:40 UTC
  detached::TimesWriter times;
  const auto came = [&](const std::string& text, bool is_stderr, uint64_t offset, int64_t after) {
    Write(job, 1, text, is_stderr);
    detached::AddTimes(job.LogFolder(0),
                       times.Note({Rank(1), is_stderr}, offset, begin + after * second));
  };
  came("a\nb, ", false, 0, 0);
  came("oops\n", true, 0, 10);
  came("in two\nc\n", false, 5, 20);
  Write(job, 0, "of an older version\n");
  End(job, 0);
  EXPECT_EQ(Run({"logs", "-t", "dtrain-abc"}).out,
            "-                       [0] of an older version\n"
            "2025-11-27T00:56:40.000 [1] a\n"
            "2025-11-27T00:56:50.000 [1 stderr] oops\n"
            "2025-11-27T00:56:40.000 [1] b, in two\n"
            "2025-11-27T00:57:00.000 [1] c\n");
  EXPECT_EQ(Run({"logs", "--since", "2025-11-27 00:56:45", "-r1", "dtrain-abc"}).out,
            "in two\nc\n");
  EXPECT_EQ(Run({"logs", "--since", "2025-11-27T00:56:55Z", "dtrain-abc"}).out,
            "[1] in two\n[1] c\n");
  EXPECT_EQ(Run({"logs", "--since", "10m", "dtrain-abc"}).out, "");
  EXPECT_THAT(Run({"logs", "-t", "--json", "-r1", "--tail", "1", "dtrain-abc"}).out,
              HasSubstr(R"("line":"oops","unix_seconds":1764205010.0})"));
  const Ran ran = Run({"logs", "--since", "yesterday", "dtrain-abc"});
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("\"yesterday\" is neither a duration"));
}

TEST_F(OutputTest, FollowersLearnThatNobodyHasTheJobAnyMore) {
  const auto job = Accept("dtrain-abc");
  Runs(job);
  Write(job, 0, "one\n");
  {
    const os::FileLock lock = Hold(job);
    Program program = Start({"logs", "-f", "dtrain-abc"});
    ASSERT_TRUE(program.Prints("[0] one\n"));
    EXPECT_THAT(program.err, Not(HasSubstr("launcher")));
  }
  Program program = Start({"logs", "-f", "dtrain-abc"});
  EXPECT_TRUE(program.Prints("dtrain: dtrain-abc has no launcher since ")) << program.err;
  EXPECT_TRUE(program.Prints("`dtrain attach dtrain-abc` starts one")) << program.err;
  Write(job, 0, "two\n");
  EXPECT_TRUE(program.Prints("[0] two\n"));
}

TEST_F(OutputTest, FollowersLearnThatTheLauncherWasKilled) {
  const auto job = Accept("dtrain-abc");
  Runs(job);
  Write(job, 0, "one\n");
  std::optional<os::FileLock> lock = Hold(job);
  Program program = Start({"logs", "-f", "dtrain-abc"});
  ASSERT_TRUE(program.Prints("[0] one\n"));
  lock.reset();
  EXPECT_TRUE(program.Prints("dtrain: dtrain-abc has no launcher since ")) << program.err;
}

TEST_F(OutputTest, LogsFollowUntilTheEnd) {
  const auto job = Accept("dtrain-abc");
  Runs(job);
  const os::FileLock lock = Hold(job);
  Write(job, 0, "one\n");
  Program program = Start({"logs", "-f", "-r0", "--tail", "1", "dtrain-abc"});
  ASSERT_TRUE(program.Prints("one\n"));
  Write(job, 0, "two\n");
  ASSERT_TRUE(program.Prints("two\n"));
  Restarts(job, 0, "why");
  Runs(job, 1);
  Write(job, 0, "three\n", false, 1);
  ASSERT_TRUE(program.Prints("three\n"));
  End(job, 7);
  EXPECT_EQ(program.Wait(), 0);
  EXPECT_EQ(program.out, "one\ntwo\nthree\n");
}

TEST_F(OutputTest, FollowersOfSeveralRanksSeeBarsAndPrompts) {
  const auto job = Accept("dtrain-abc");
  Runs(job);
  const os::FileLock lock = Hold(job);
  Write(job, 0, "\r10%");
  Write(job, 1, "name? ");
  Program program = Start({"logs", "-f", "dtrain-abc"});
  ASSERT_TRUE(program.Prints("[0] 10%\n")) << program.out;
  ASSERT_TRUE(program.Prints("[1] name? ")) << program.out;
  Write(job, 1, "x\n");
  ASSERT_TRUE(program.Prints("[1] name? x\n")) << program.out;
  Write(job, 0, "\r20%");
  ASSERT_TRUE(program.Prints("[0] 20%\n")) << program.out;
  Write(job, 1, "no end");
  End(job, 0);
  EXPECT_EQ(program.Wait(), 0);
  EXPECT_EQ(program.out, "[0] 10%\n[1] name? x\n[0] 20%\n[1] no end\n");
}

TEST_F(OutputTest, FollowersSeeUnfinishedLinesAsObjects) {
  const auto job = Accept("dtrain-abc");
  Runs(job);
  const os::FileLock lock = Hold(job);
  Write(job, 0, "\r10%\r\033[32m20%\033[0m");
  Program program = Start({"logs", "-f", "--json", "dtrain-abc"});
  const std::string begin = R"({"rank":0,"stream":"stdout","line":")";
  const std::string stands = begin + "20%\",\"unfinished\":true}\n";
  ASSERT_TRUE(program.Prints(stands)) << program.out;
  Write(job, 0, "\rdone\n");
  End(job, 0);
  EXPECT_EQ(program.Wait(), 0);
  EXPECT_EQ(program.out, stands + begin + R"(\r10%\r\u001b[32m20%\u001b[0m\rdone"})" + "\n");
}

TEST_F(OutputTest, FollowersOfOneRankWithTimesSeePrompts) {
  const auto job = Accept("dtrain-abc");
  Runs(job);
  const os::FileLock lock = Hold(job);
  Write(job, 0, "name? ");
  Program program = Start({"logs", "-f", "-t", "-r0", "dtrain-abc"});
  const std::string no_time = "-                       ";
  ASSERT_TRUE(program.Prints(no_time + "name? ")) << program.out;
  Write(job, 0, "x\nnext\n");
  End(job, 0);
  EXPECT_EQ(program.Wait(), 0);
  EXPECT_EQ(program.out, absl::StrCat(no_time, "name? x\n", no_time, "next\n"));
}

TEST_F(OutputTest, WhatIsNotKeptIsCountedWhileTheJobRuns) {
  const auto job = Accept("dtrain-abc");
  Runs(job);
  const os::FileLock lock = Hold(job);
  Write(job, 0, "first\n");
  Program attached = Start({"attach", "dtrain-abc"});
  Program followed = Start({"logs", "-f", "-r0", "dtrain-abc"});
  ASSERT_TRUE(attached.Prints("[0] first\n"));
  ASSERT_TRUE(followed.Prints("first\n"));
  std::ofstream(job.LogFolder(0) + "/" + detached::SegmentName({Rank(0), false}, 1000)) << "last\n";
  EXPECT_TRUE(attached.Prints("[0] [dtrain: 994 bytes are no longer available]\n[0] last\n"))
      << attached.out;
  EXPECT_TRUE(followed.Prints("first\n[dtrain: 994 bytes are no longer available]\nlast\n"))
      << followed.out;
}

TEST_F(OutputTest, AnAttemptOfWhichNothingIsKeptSaysHowMuchThereWas) {
  const auto job = Accept("dtrain-abc");
  Runs(job);
  fs::create_directory(job.LogFolder(0));
  std::ofstream(job.LogFolder(0) + "/" + detached::SegmentName({Rank(0), false}, 5000)).flush();
  Restarts(job, 0, "why");
  Runs(job, 1);
  Write(job, 0, "of the next\n", false, 1);
  End(job, 0);
  EXPECT_EQ(Run({"logs", "--attempt", "0", "dtrain-abc"}).out,
            "[0] [dtrain: 5000 bytes are no longer available]\n");
  EXPECT_EQ(Run({"logs", "--attempt", "0", "--tail", "3", "dtrain-abc"}).out, "");
  EXPECT_EQ(Run({"logs", "dtrain-abc"}).out, "[0] of the next\n");
}

TEST_F(OutputTest, TailsCrossSegmentsAndMissingOnes) {
  const auto job = Accept("dtrain-abc");
  Runs(job);
  const std::string folder = job.LogFolder(0);
  fs::create_directory(folder);
  const auto segment = [&](uint64_t begin, const std::string& text) {
    std::ofstream(folder + "/" + detached::SegmentName({Rank(0), false}, begin)) << text;
  };
  segment(0, "first\n");
  segment(1000, "a\nb\nc");
  segment(1005, "c\nd\n");
  End(job, 0);
  EXPECT_EQ(Run({"logs", "-r0", "--tail", "1", "dtrain-abc"}).out, "d\n");
  EXPECT_EQ(Run({"logs", "-r0", "--tail", "2", "dtrain-abc"}).out, "cc\nd\n");
  EXPECT_EQ(Run({"logs", "-r0", "--tail", "4", "dtrain-abc"}).out, "a\nb\ncc\nd\n");
  EXPECT_EQ(Run({"logs", "-r0", "--tail", "99", "dtrain-abc"}).out, "a\nb\ncc\nd\n");
  EXPECT_EQ(Run({"logs", "-r0", "dtrain-abc"}).out,
            "first\n[dtrain: 994 bytes are no longer available]\na\nb\ncc\nd\n");
}

}  // namespace
}  // namespace dtrain::history
