// SPDX-License-Identifier: Apache-2.0
// --output, and what of the output is shown.
#include "launcher/output/log_files.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/component/output/router_fixture.h"

namespace dtrain::output {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr uid_t kMallory = 4242;

class LogFilesTest : public RouterTest {
 protected:
  Options Files(const std::string& pattern) {
    Options options;
    auto parsed = FilePattern::Parse(absl::StrCat(dir_, "/", pattern));
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    if (parsed.ok()) options.files = *std::move(parsed);
    return options;
  }
  void Say(uint32_t rank, v1::StreamKind stream, const std::string& bytes) {
    router_->Deliver(rank < 2 ? "a" : "b", Rank(rank), stream, bytes);
  }
  std::string File(const std::string& name) { return ReadFile(absl::StrCat(dir_, "/", name)); }
};

TEST_F(LogFilesTest, NamesFollowThePatternAndFoldersAreMade) {
  Make(Files("logs/%j/%h/%n.%l-%r.%s"), 4);
  ASSERT_TRUE(router_->Open().ok());
  Say(0, kOut, "zero\n");
  Say(3, kErr, std::string("a\0\xff\n\nb", 6));
  router_->EndOfStream(Rank(2), kOut);
  Finish();
  EXPECT_EQ(File("logs/job/a/0.0-0.stdout"), "zero\n");
  EXPECT_EQ(File("logs/job/b/1.1-3.stderr"), std::string("a\0\xff\n\nb", 6));
  EXPECT_TRUE(std::filesystem::exists(dir_ + "/logs/job/b/1.0-2.stdout"));
  EXPECT_THAT(warnings_, testing::IsEmpty());
  EXPECT_EQ(Out(), "[0] zero\n");
}

// The launcher before us has written to them.
TEST_F(LogFilesTest, FilesOfAJobThatGoesOnAreNotCut) {
  for (const bool goes_on : {false, false, true, true}) {
    Options options = Files("log-%r");
    options.goes_on = goes_on;
    Make(options, 1);
    ASSERT_TRUE(router_->Open().ok());
    Say(0, kOut, "line\n");
    Finish();
  }
  EXPECT_EQ(File("log-0"), "line\nline\nline\n");
  EXPECT_THAT(warnings_, testing::IsEmpty());
}

TEST_F(LogFilesTest, FilesBelongToOneJobAtATime) {
  const FilePattern pattern = *FilePattern::Parse(absl::StrCat(dir_, "/logs/%h/%r.log"));
  EXPECT_EQ(pattern.LockName(), ".%h+%r.log.lock");
  EXPECT_EQ(FilePattern::Parse("logs/%j-%r.log")->LockName(), "");
  std::vector<std::string> errors;
  const auto begin = [&](const std::string& job, bool goes_on = false) {
    LogNames names = NamesInDirectory(dir_ + "/logs");
    names.holder = job;
    names.goes_on = goes_on;
    return std::make_unique<LogFiles>(
        loop_, std::move(names),
        LogFiles::Callbacks{[&](const absl::Status& why) { errors.emplace_back(why.message()); },
                            {}});
  };
  const auto end = [&](LogFiles& files) {
    bool done = false;
    files.Finish([&] { done = true; });
    RunUntil([&] { return done; });
  };
  const auto first = begin("job one");
  ASSERT_TRUE(first->Open().ok());
  first->Write(Rank(0), kOut, "one\n");
  const absl::Status refused = begin("job two")->Open();
  EXPECT_TRUE(absl::IsUnavailable(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("job one writes to these files in"));
  // One whose workers run already does without.
  const auto goes_on = begin("job three", /*goes_on=*/true);
  ASSERT_TRUE(goes_on->Open().ok());
  EXPECT_THAT(errors, ElementsAre(refused.message()));
  goes_on->Write(Rank(0), kOut, "three\n");
  end(*goes_on);
  end(*first);
  EXPECT_THAT(goes_on->Lack(), testing::AllOf(HasSubstr("job one writes to these files"),
                                              HasSubstr("rank-00000.out lacks 6 bytes since 20")));
  EXPECT_EQ(first->Lack(), "");
  EXPECT_EQ(File("logs/rank-00000.out"), "one\n");
  EXPECT_FALSE(std::filesystem::exists(dir_ + "/logs/.dtrain.lock"));
  EXPECT_TRUE(begin("job four")->Open().ok());
}

// A write that stopped short does not mean that somebody has cut the file.
TEST_F(LogFilesTest, AFullDiskIsOneWarning) {
  std::vector<std::string> errors;
  LogNames names = NamesInDirectory(dir_ + "/logs");
  names.holder = "this job";
  LogFiles files(loop_, std::move(names),
                 LogFiles::Callbacks{
                     [&](const absl::Status& why) { errors.emplace_back(why.message()); }, {}});
  ASSERT_TRUE(files.Open().ok());
  const auto usual_action = signal(SIGXFSZ, SIG_IGN);
  rlimit usual{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &usual), 0);
  const rlimit low{10, usual.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  files.Write(Rank(0), kOut, "ten bytes\nand more\n");
  RunUntil([&] { return !errors.empty(); });
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &usual), 0);
  signal(SIGXFSZ, usual_action);
  files.Write(Rank(0), kOut, "later\n");
  files.End(Rank(0), kOut);
  bool done = false;
  files.Finish([&] { done = true; });
  RunUntil([&] { return done; });
  EXPECT_THAT(errors, ElementsAre(HasSubstr("rank-00000.out: File too large")));
  EXPECT_EQ(File("logs/rank-00000.out"), "ten bytes\nlater\n");
  EXPECT_THAT(files.Lack(),
              testing::AllOf(testing::StartsWith(absl::StrCat(kLackBegins, " (--log-dir): ")),
                             HasSubstr("rank-00000.out: File too large; "),
                             HasSubstr("; rank-00000.out lacks 9 bytes since 20")));
}

// And it ends the job with 207, as its own would.
TEST_F(LogFilesTest, ALauncherReportsWhatWasLostBeforeIt) {
  Create("a");
  Make(Files("%h/%r"), 4);
  const auto lose = [&](const std::string& bytes) {
    Say(0, kOut, bytes);
    Finish();
    return router_->LostInFiles();
  };
  ASSERT_TRUE(router_->Open().ok());
  const v1::OutputLost first = lose("12\n");
  ASSERT_EQ(first.files_size(), 1);
  EXPECT_EQ(first.files(0).name(), "a/0");
  Make(Files("%h/%r"), 4);
  ASSERT_TRUE(router_->Open("", first).ok());
  std::filesystem::remove(dir_ + "/a");
  lose("kept\n");
  EXPECT_EQ(File("a/0"), "kept\n");
  EXPECT_THAT(router_->MissingInFiles(),
              HasSubstr("/a/0: Not a directory; a/0 lacks 3 bytes since 20"));
  EXPECT_THAT(lost_, ElementsAre(3)) << "told once, by the launcher that has lost it";
}

TEST_F(LogFilesTest, MoreFoldersThanAreKeptOpen) {
  const uint32_t ranks = 200;
  Make(Files("logs/%r/log"), ranks);
  ASSERT_TRUE(router_->Open().ok());
  for (const char* line : {"1\n", "2\n"}) {
    for (uint32_t rank = 0; rank < ranks; ++rank) Say(rank, kOut, line);
  }
  Finish();
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    EXPECT_EQ(File(absl::StrCat("logs/", rank, "/log")), "1\n2\n");
  }
}

TEST_F(LogFilesTest, StreamsThatShareAFileMixByWholeLines) {
  Make(Files("%r.log"), 2);
  ASSERT_TRUE(router_->Open().ok());
  Say(0, kOut, "out ");
  Say(0, kErr, "err\nerr again");
  Say(0, kOut, "goes on\nno end");
  router_->EndOfStream(Rank(0), kOut);
  Say(0, kErr, ", and its end\nnor here");
  Finish();
  EXPECT_EQ(File("0.log"), "err\nout goes on\nno end\nerr again, and its end\nnor here\n");
}

TEST_F(LogFilesTest, ALineWithoutEndInASharedFileIsNotKeptInMemory) {
  Make(Files("%r.log"), 1);
  ASSERT_TRUE(router_->Open().ok());
  const std::string piece(LineSplitter::kMaxLine, 'x');
  Say(0, kOut, piece + "y");
  RunUntil([&] { return File("0.log").size() == piece.size(); });
  Finish();
  EXPECT_EQ(File("0.log"), piece + "y\n");
}

TEST_F(LogFilesTest, AFolderThatCannotBeMadeIsAnErrorBeforeTheStart) {
  Create("file");
  Make(Files("file/logs/%r"), 1);
  EXPECT_THAT(std::string(router_->Open().message()),
              HasSubstr(absl::StrCat("--output: make the directory ", dir_, "/file/logs: Not a")));
}

TEST_F(LogFilesTest, AFolderThatCannotBeMadeLaterIsWarnedOfOnce) {
  Create("a");
  Make(Files("%h/%r"), 4);
  ASSERT_TRUE(router_->Open().ok());
  Say(0, kOut, "1\n");
  Say(1, kOut, "2\n");
  Say(2, kOut, "3\n");
  Finish();
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("/a/0: Not a directory; the log files (--output) "
                                               "will not be complete")));
  EXPECT_EQ(File("b/2"), "3\n");
  EXPECT_THAT(router_->MissingInFiles(),
              testing::AllOf(HasSubstr("; a/0 lacks 2 bytes since"), HasSubstr("; a/1 lacks 2"),
                             testing::Not(HasSubstr("b/2"))));
}

// Somebody else knows the names that a job will use in /tmp.
TEST_F(LogFilesTest, WhatOthersPlantInASharedFolderIsNotWrittenTo) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to make a file that is another user's";
  const std::string shared = dir_ + "/shared";
  std::filesystem::create_directories(shared);
  std::filesystem::create_directories(dir_ + "/mine");
  ASSERT_EQ(chmod(shared.c_str(), 01777), 0);
  std::ofstream(shared + "/0.log").close();
  ASSERT_EQ(chown((shared + "/0.log").c_str(), kMallory, kMallory), 0);
  std::filesystem::create_symlink(dir_ + "/mine", shared + "/b");
  ASSERT_EQ(lchown((shared + "/b").c_str(), kMallory, kMallory), 0);
  Make(Files("shared/%r.log"), 1);
  ASSERT_TRUE(router_->Open().ok());
  Say(0, kOut, "secret\n");
  Finish();
  EXPECT_EQ(File("shared/0.log"), "");
  Make(Files("shared/%h/%r"), 4);
  ASSERT_TRUE(router_->Open().ok());
  Say(2, kOut, "secret\n");
  Say(3, kOut, "secret\n");
  Finish();
  EXPECT_TRUE(std::filesystem::is_empty(dir_ + "/mine"));
  // Where fs.protected_regular is on, the kernel says no before we do.
  EXPECT_THAT(warnings_, ElementsAre(testing::AnyOf(HasSubstr("0.log: it is user 4242's"),
                                                    HasSubstr("0.log: Permission denied")),
                                     HasSubstr("b is a symbolic link that user 4242 made")));
}

TEST_F(LogFilesTest, WhatIsNotShownIsInTheFilesAllTheSame) {
  Options options = Files("%r");
  options.shown.ranks = {{1, 1}, {3, 3}};
  options.shown.streams_of = {{1, Streams::kStderr}};
  Make(options, 4);
  ASSERT_TRUE(router_->Open().ok());
  for (uint32_t rank : {0u, 1u, 2u, 3u}) {
    Say(rank, kOut, "out\n");
    Say(rank, kErr, "err\n");
    router_->EndOfStream(Rank(rank), kOut);
  }
  Finish();
  EXPECT_EQ(Out(), "");
  EXPECT_EQ(Err(), "[1] err\n[3] err\n");
  for (const char* name : {"0", "1", "2", "3"}) EXPECT_EQ(File(name), "out\nerr\n");
}

// A summary would name ranks whose tracebacks nobody sees.
TEST_F(LogFilesTest, TracebacksOfRanksThatAreNotShownAreNotCounted) {
  Options options;
  options.shown.ranks = {{2, 2}};
  Make(options, 3);
  for (uint32_t rank : {0u, 1u, 2u}) {
    Say(rank, kErr, "Traceback (most recent call last):\n  File \"a.py\"\nKeyError: 1\n");
    router_->EndOfStream(Rank(rank), kErr);
  }
  Finish();
  EXPECT_EQ(Err(),
            "[2] Traceback (most recent call last):\n[2]   File \"a.py\"\n[2] KeyError: 1\n");
}

TEST_F(LogFilesTest, RanksToShowThatTheJobDoesNotHaveAreAWarning) {
  Options options;
  options.shown.ranks = {{0, 7}};
  Make(options, 2);
  EXPECT_THAT(warnings_, ElementsAre("--show-ranks: the job has no rank 2, only 0 to 1"));
  Finish();
}

}  // namespace
}  // namespace dtrain::output
