// SPDX-License-Identifier: Apache-2.0
// The commands about detached jobs, against folders as launchers leave them.
#include <nlohmann/json.hpp>

#include "launcher/detached/ourselves.h"
#include "tests/component/history/jobs_fixture.h"

namespace dtrain::history {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class CommandsTest : public JobsTest {};

TEST_F(CommandsTest, HistoryListsEndedJobsTheLastFirst) {
  EXPECT_EQ(Run({"history"}).out, "no job has ended\n");
  End(Accept("dtrain-one", "first"), 0);
  const auto two = Accept("dtrain-two");
  End(two, 7);
  fs::last_write_time(two.path() + "/summary.json",
                      fs::file_time_type::clock::now() + std::chrono::hours(1));
  Accept("dtrain-three");
  const Ran ran = Run({"history"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.err, "");
  EXPECT_THAT(ran.out, StartsWith("JOB"));
  EXPECT_LT(ran.out.find("dtrain-two"), ran.out.find("dtrain-one"));
  EXPECT_THAT(ran.out, AllOf(HasSubstr("first"), HasSubstr("launch -np 2 python3 t.py"),
                             Not(HasSubstr("dtrain-three"))));
  const Json json = Json::parse(Run({"history", "--json", "--limit", "1"}).out);
  ASSERT_EQ(json["jobs"].size(), 1u);
  EXPECT_EQ(json["jobs"][0]["id"], "dtrain-two");
  EXPECT_EQ(json["jobs"][0]["exit_code"], 7);
  EXPECT_EQ(json["all"], 2);
  EXPECT_THAT(Run({"history", "--limit", "1"}).out, HasSubstr("and 1 more; --limit 0 lists all\n"));
}

TEST_F(CommandsTest, ShowTellsOfARunningJobWhoControlsIt) {
  const auto job = Accept("dtrain-abc", "train");
  Runs(job);
  Restarts(job, 0, "rank 1 on node2 exited with code 3");
  Runs(job, 1);
  {
    const os::FileLock lock = Hold(job);
    for (const char* name : {"dtrain-abc", "train"}) {
      const Ran ran = Run({"show", name});
      EXPECT_EQ(ran.code, 0) << ran.err;
      EXPECT_THAT(ran.out, StartsWith("dtrain-abc (train): running, attempt 1\n"
                                      "launch -np 2 python3 t.py\n"));
      EXPECT_THAT(ran.out, HasSubstr("process 4242 on login2, since 2025-11-27 00:56:41, "
                                     "generation 3\n"));
      EXPECT_THAT(ran.out, HasSubstr("node1, node2: 2 ranks\n"));
      EXPECT_THAT(ran.out, HasSubstr("  attempt 0: rank 1 on node2 exited with code 3\n"));
    }
    // Of no launcher that listens: what the folder says.
    EXPECT_THAT(Run({"status"}).out, HasSubstr("dtrain-abc (train): running"));
    EXPECT_THAT(Run({"ps"}).out,
                AllOf(HasSubstr("NAME"), HasSubstr("running"), HasSubstr("2 running")));
  }
  EXPECT_THAT(Run({"show", "train"}).out,
              AllOf(HasSubstr(": unattended"), HasSubstr("nobody, since ")));
  EXPECT_THAT(Run({"status", "train"}).out, HasSubstr(": unattended"));
  EXPECT_THAT(Run({"ps"}).out, HasSubstr("unattended"));
  const Json json = Json::parse(Run({"ps", "--json"}).out);
  EXPECT_EQ(json["jobs"][0]["phase"], "unattended");
  EXPECT_TRUE(json["jobs"][0]["held_by"].is_null());
}

TEST_F(CommandsTest, ShowHasTheReportOfAnEndedJob) {
  const auto job = Accept("dtrain-abc");
  Runs(job);
  End(job, 7);
  const Ran ran = Run({"show", "dtrain-abc"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_THAT(ran.out, StartsWith("dtrain-abc: ended, exit code 7\n"));
  EXPECT_THAT(ran.out,
              HasSubstr("dtrain: rank 1 on node2 (pid 11) exited with code 7 after 4.50 s; "
                        "the end of its stderr:\n  | it went wrong\n"));
  EXPECT_THAT(ran.out, HasSubstr("dtrain: 2 attempts:\n  attempt 0, ran 2.50 s: rank 0 on node1 "
                                 "exited with code 3\n"));
  EXPECT_THAT(ran.out, HasSubstr("\ndtrain: exit code 7\n"));
  const Json json = Json::parse(Run({"show", "--json", "dtrain-abc"}).out);
  EXPECT_EQ(json["state"], "ended");
  EXPECT_EQ(json["exit_code"], 7);
  EXPECT_EQ(json["attempts"].size(), 2u);
  EXPECT_EQ(Json::parse(Run({"status", "dtrain-abc", "--json"}).out)["exit_code"], 7);
}

TEST_F(CommandsTest, PsWithAllHasEndedJobs) {
  End(Accept("dtrain-one"), 7);
  EXPECT_EQ(Run({"ps"}).out, "no jobs\n");
  const Ran ran = Run({"ps", "-a"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, AllOf(HasSubstr("ENDED"), HasSubstr("exit 7, 20")));
  const Json json = Json::parse(Run({"ps", "-a", "--json"}).out);
  EXPECT_EQ(json["ended"][0]["exit_code"], 7);
  EXPECT_TRUE(json["jobs"].empty());
}

TEST_F(CommandsTest, UnknownAndAmbiguousNames) {
  for (const char* command : {"show", "attach", "wait", "rm", "rerun"}) {
    const Ran ran = Run({command, "nobody"});
    EXPECT_EQ(ran.code, 1) << command;
    EXPECT_EQ(ran.out, "") << command;
    EXPECT_THAT(ran.err, HasSubstr("no job \"nobody\"")) << command;
  }
  EXPECT_THAT(Run({"attach"}).err, HasSubstr("no detached job running"));
  const auto one = Accept("dtrain-aaaa1");
  const auto two = Accept("dtrain-aaaa2");
  for (const char* command : {"show", "attach", "wait", "rm", "rerun", "logs", "stop", "status"}) {
    for (const auto& [text, why] : {std::pair("aaaa", "several"), std::pair("a", "too short")}) {
      const Ran ran = Run({command, text});
      EXPECT_EQ(ran.code, 2) << command << ran.err;
      EXPECT_THAT(ran.err, AllOf(HasSubstr(why), HasSubstr("dtrain-aaaa1, dtrain-aaaa2")));
    }
  }
  EXPECT_EQ(Run({"attach"}).code, 2);
  EXPECT_EQ(Run({"stop"}).code, 2);
  EXPECT_THAT(Run({"show", "\x1b[2J"}).err, HasSubstr("\\x1b[2J"));
  EXPECT_EQ(Run({"show"}).code, 2);
  EXPECT_EQ(Run({"show", "a", "b"}).code, 2);
  EXPECT_EQ(Run({"show", ""}).code, 2);
  EXPECT_EQ(Run({"wait", "--timeout", "soon", "aaaa1"}).code, 2);
}

TEST_F(CommandsTest, ANameWhoseJobHasEndedIsNoOtherJob) {
  Accept("dtrain-bb16aa");
  End(Accept("dtrain-77cc", "bb16"), 0);
  const Ran ran = Run({"stop", "bb16"});
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err, HasSubstr("dtrain-77cc has ended already"));
  EXPECT_TRUE(std::filesystem::exists(jobs_->place() + "/jobs/dtrain-bb16aa"));
}

// What ends or changes a job does so only to one that is named, or was launched from here: another
// may be somebody else's on the same account.
TEST_F(CommandsTest, WithoutAJobOnlyTheOneFromThisDirectoryIsMeant) {
  const auto job = Accept("dtrain-aaaa1");
  const os::FileLock lock = Hold(job);
  const std::string from = absl::StrCat(" dtrain-aaaa1  # launched from ", dir_, "/work\n");
  const auto expect_refused = [&](const char* why) {
    for (const Strings& args :
         {Strings{"stop"}, Strings{"detach"}, Strings{"migrate", "--to", "node1"}}) {
      const Ran ran = Run(args);
      EXPECT_EQ(ran.code, 2) << ran.err;
      const std::string type = args[0] == "migrate" ? "migrate --to HOST" : args[0];
      EXPECT_THAT(ran.err,
                  AllOf(HasSubstr(why), HasSubstr(absl::StrCat("\n  dtrain ", type, from))));
    }
  };
  expect_refused("no running job was launched from this directory");
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::create_symlink(dir_ + "/work", dir_ + "/link");
  std::filesystem::current_path(dir_ + "/link");
  const auto other = Accept("dtrain-bbbb2", "", {"launch", "x"}, "/run");
  EXPECT_THAT(Run({"detach"}).err, HasSubstr("dtrain-aaaa1 is a detached job already"));
  const auto second = Accept("dtrain-cccc3");
  expect_refused("several running jobs were launched from this directory");
  std::filesystem::current_path(before);
}

TEST_F(CommandsTest, WaitGivesTheFirstCodeThatIsNotZero) {
  const auto good = Accept("dtrain-good");
  const auto bad = Accept("dtrain-bad");
  const auto worse = Accept("dtrain-worse");
  End(good, 0);
  End(bad, 7);
  const os::FileLock lock = Hold(worse);
  Program program = Start({"wait", "good", "dtrain-bad", "worse"});
  ASSERT_TRUE(program.Prints("dtrain-bad has ended with exit code 7"));
  End(worse, 9);
  EXPECT_EQ(program.Wait(), 7);
  EXPECT_THAT(program.err, HasSubstr("dtrain-worse has ended with exit code 9"));
  EXPECT_EQ(Run({"wait", "good"}).code, 0);
  const Json json = Json::parse(Run({"wait", "--json", "good", "worse"}).out);
  EXPECT_EQ(json["jobs"][1]["exit_code"], 9);
}

TEST_F(CommandsTest, WaitEndsAtItsTimeout) {
  const auto job = Accept("dtrain-long");
  const os::FileLock lock = Hold(job);
  const Ran ran = Run({"wait", "--timeout", "200ms", "long"});
  EXPECT_EQ(ran.code, 210);
  EXPECT_EQ(ran.err, "dtrain: still running: dtrain-long\n");
}

TEST_F(CommandsTest, WaitNoticesThatAJobWasRemoved) {
  const auto job = Accept("dtrain-long");
  auto lock = std::make_optional(Hold(job));
  Program program = Start({"wait", "long"});
  fs::rename(job.path(), dir_ + "/away");
  lock.reset();
  EXPECT_EQ(program.Wait(), 1);
  // Perhaps before it was found.
  EXPECT_THAT(program.err, testing::AnyOf(HasSubstr("was removed"), HasSubstr("no job")));
}

TEST_F(CommandsTest, OnlyEndedJobsAreRemoved) {
  const auto runs = Accept("dtrain-runs");
  const auto ended = Accept("dtrain-ended", "old");
  End(ended, 0);
  const Ran ran = Run({"rm", "runs", "old", "none"});
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err, AllOf(HasSubstr("dtrain-runs has not ended"), HasSubstr("no job \"none\"")));
  EXPECT_TRUE(fs::exists(runs.path()));
  EXPECT_FALSE(fs::exists(ended.path()));
  EXPECT_EQ(Run({"history"}).out, "no job has ended\n");
}

TEST_F(CommandsTest, PruneSaysHowManyWent) {
  for (const char* id : {"dtrain-1", "dtrain-2", "dtrain-3"}) End(Accept(id), 0);
  EXPECT_EQ(Run({"prune"}).out, "removed 0 jobs\n");
  EXPECT_EQ(Run({"prune", "--keep-jobs", "2"}).out, "removed 1 job: dtrain-1\n");
  EXPECT_EQ(Run({"prune", "--keep-age", "0s", "--json"}).out, "{\n  \"removed\": 2\n}\n");
}

TEST_F(CommandsTest, PruneHasNothingToDoBeforeTheFirstJob) {
  const Ran ran = Run({"prune"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.out, "removed 0 jobs\n") << ran.err;
}

TEST_F(CommandsTest, PruneHasItsDefaultsFromTheConfigurationFile) {
  const std::string path = dir_ + "/.config/dtrain/config.toml";
  fs::create_directories(fs::path(path).parent_path());
  const auto config = [&path](const std::string& text) { std::ofstream(path) << text; };
  for (const char* id : {"dtrain-1", "dtrain-2", "dtrain-3"}) End(Accept(id), 0);
  config("[launch]\nlease = \"20s\"\n[history]\njobs = 2\n");
  EXPECT_EQ(Run({"prune", "--keep-jobs", "3"}).out, "removed 0 jobs\n");
  EXPECT_EQ(Run({"prune"}).out, "removed 1 job: dtrain-1\n");
  config("[history]\nkeep = \"30d\"\nbytes = \"1K\"\n");
  EXPECT_EQ(Run({"prune", "--keep-bytes", "1G"}).out, "removed 0 jobs\n");
  config("[history]\nkeep = \"soon\"\n");
  Ran ran = Run({"prune"});
  EXPECT_EQ(ran.code, 2);
  EXPECT_EQ(ran.err, absl::StrCat("dtrain: prune: keep in ", path,
                                  ":2: \"soon\" is not a time such as 30, 30s, 500ms, 2m or 1h\n"));
  config("[history]\nkeep = \"0s\"\n");
  EXPECT_EQ(Run({"prune"}).out, "removed 2 jobs: dtrain-2, dtrain-3\n");
}

// As after sudo -E. A file of one's own may lie elsewhere, as stow does it.
TEST_F(CommandsTest, AConfigurationFileThatOthersCanWriteIsNotRead) {
  const std::string path = dir_ + "/.config/dtrain/config.toml", target = dir_ + "/dotfile";
  fs::create_directories(fs::path(path).parent_path());
  fs::create_symlink("../../dotfile", path);
  std::ofstream(target) << "nonsense = 1\n[history]\njobs = 0\n";
  for (const char* id : {"dtrain-1", "dtrain-2"}) End(Accept(id), 0);
  const Strings launch = {"launch", "-H", "nowhere.invalid:1", "--dry-run", "--", "true"};
  const auto expect_ignored = [&](const std::string& why) {
    Ran ran = Run(launch);
    EXPECT_EQ(ran.code, 0) << ran.err;
    EXPECT_THAT(ran.err, HasSubstr("dtrain: warning: the configuration file is ignored: "));
    EXPECT_THAT(ran.err, HasSubstr(why));
    // How much is to be kept is not known, so nothing is removed.
    ran = Run({"prune"});
    EXPECT_EQ(ran.code, 2);
    EXPECT_EQ(ran.out, "");
    EXPECT_THAT(ran.err, HasSubstr(why));
  };
  chmod(target.c_str(), 0666);
  expect_ignored(path + " can be written by everybody");
  chmod(target.c_str(), 0644);
  if (geteuid() == 0) {
    const std::string above = dir_ + "/.config";
    ASSERT_EQ(chown(above.c_str(), 65534, 65534), 0);
    expect_ignored(above + " belongs to user id 65534");
    ASSERT_EQ(chown(above.c_str(), 0, 0), 0);
  }
  EXPECT_THAT(Run(launch).err, HasSubstr("unknown key nonsense"));
  EXPECT_EQ(Run({"prune"}).out, "removed 2 jobs: dtrain-1, dtrain-2\n");
}

TEST_F(CommandsTest, ShowSaysThatAJobIsKept) {
  v1::Spec spec;
  spec.set_job_id("dtrain-abc");
  spec.set_keep(true);
  const auto job = jobs_->Accept(spec);
  ASSERT_TRUE(job.ok()) << job.status();
  End(job->folder, 0);
  EXPECT_THAT(Run({"show", "dtrain-abc"}).out,
              testing::ContainsRegex("kept +until dtrain rm dtrain-abc\n"));
  EXPECT_EQ(Run({"prune", "--keep-age", "0s"}).out, "removed 0 jobs\n");
  EXPECT_EQ(Run({"rm", "dtrain-abc"}).code, 0);
  EXPECT_FALSE(fs::exists(job->folder.path()));
}

TEST_F(CommandsTest, WhatIsDamagedIsNamed) {
  const auto cut = Accept("dtrain-cut");
  ASSERT_TRUE(cut.WriteSummary(R"({"exit_code": )").ok());
  fs::remove(cut.path() + "/journal");
  EXPECT_THAT(Run({"show", "dtrain-cut"}).out,
              AllOf(StartsWith("dtrain-cut: ended, exit code not known"), HasSubstr("problem: ")));
  EXPECT_EQ(Run({"wait", "dtrain-cut"}).code, 207);
  EXPECT_EQ(Run({"attach", "dtrain-cut"}).code, 207);
  EXPECT_THAT(Run({"history"}).out, HasSubstr("dtrain-cut"));
  EXPECT_EQ(Run({"rm", "dtrain-cut"}).code, 0);

  const auto spoilt = Accept("dtrain-spoilt");
  Runs(spoilt);
  Restarts(spoilt, 0, "why");
  {
    std::fstream file(spoilt.path() + "/journal", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(30);
    file.put('!');
  }
  EXPECT_THAT(Run({"show", "spoilt"}).out, HasSubstr("problem: "));
  const Ran ran = Run({"attach", "spoilt"});
  EXPECT_EQ(ran.code, 207);
  EXPECT_THAT(ran.err, HasSubstr("lost+found/dtrain-spoilt"));
  EXPECT_FALSE(fs::exists(spoilt.path()));
  EXPECT_EQ(Run({"attach", "spoilt"}).code, 1);
}

// Lists and pages are copied into tickets.
TEST_F(CommandsTest, ValuesOfVariablesAreMasked) {
  v1::Spec spec;
  spec.set_job_id("dtrain-abc");
  for (const char* word : {"launch", "-x", "WANDB_API_KEY=hush", "-x", "NCCL_DEBUG=INFO", "true"}) {
    spec.add_argv(word);
  }
  v1::EnvVar& flag = *spec.add_flag_variables();
  flag.set_name("DTRAIN_MAX_RESTARTS");
  flag.set_value("3");
  v1::EnvVar& exported = *spec.add_flag_variables();
  exported.set_name("DTRAIN_EXPORT");
  exported.set_value("TOKEN=hush");
  spec.set_working_directory(dir_ + "/work");
  const auto job = jobs_->Accept(spec);
  ASSERT_TRUE(job.ok()) << job.status();
  for (const bool ended : {false, true}) {
    if (ended) End(job->folder, 0);
    for (const Strings& args : std::vector<Strings>{{"history", "--json"},
                                                    {"history"},
                                                    {"show", "dtrain-abc"},
                                                    {"show", "--json", "dtrain-abc"},
                                                    {"ps", "-a"},
                                                    {"ps", "-a", "--json"},
                                                    {"status", "dtrain-abc"}}) {
      const std::string out = Run(args).out;
      EXPECT_THAT(out, Not(HasSubstr("hush"))) << args[0];
      if (ended || args[0] != "history") {
        EXPECT_THAT(out, HasSubstr("WANDB_API_KEY=***")) << args[0];
      }
    }
    EXPECT_THAT(Run({"show", "dtrain-abc"}).out,
                HasSubstr("DTRAIN_MAX_RESTARTS=3 DTRAIN_EXPORT=*** launch -x WANDB_API_KEY=*** -x "
                          "NCCL_DEBUG=INFO true\n"));
  }
}

TEST_F(CommandsTest, ADamagedJobIsRemovedByForce) {
  const auto job = Accept("dtrain-abc");
  End(job, 0);
  std::ofstream(job.path() + "/spec") << "?";
  Ran ran = Run({"rm", "dtrain-abc"});
  EXPECT_EQ(ran.code, 207);
  EXPECT_THAT(ran.err, HasSubstr("`dtrain rm --force dtrain-abc` removes it nevertheless"));
  ran = Run({"rm", "--force", "dtrain-abc"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_FALSE(fs::exists(job.path()));

  // Whose launcher lives, is not.
  const auto running = Accept("dtrain-def");
  {
    const os::FileLock lock = Hold(running);
    EXPECT_EQ(Run({"rm", "--force", "dtrain-def"}).code, 1);
    EXPECT_TRUE(fs::exists(running.path()));
  }
  EXPECT_EQ(Run({"rm", "dtrain-def"}).code, 1);
  EXPECT_EQ(Run({"rm", "--force", "dtrain-def"}).code, 0);
  EXPECT_FALSE(fs::exists(running.path()));
}

// With a command line that no launcher can carry out: it says so, or ends the job.
TEST_F(CommandsTest, AJobWithoutALauncherIsHandedToANewOne) {
  for (const char* command : {"attach", "wait", "stop"}) {
    const std::string id = absl::StrCat("dtrain-", command);
    const auto job = Accept(id, "", {"launch", "--no-such-flag", "true"});
    const Ran ran = Run({command, id});
    EXPECT_THAT(ran.err, HasSubstr(absl::StrCat(id, " h"))) << command;
    EXPECT_THAT(ran.err,
                testing::AnyOf(HasSubstr("has no launcher, and a new one could not take it over"),
                               HasSubstr("had no launcher (since 20")));
    EXPECT_TRUE(fs::exists(job.path() + "/launcher.log"));
  }
}

// Its workers run on "localhost" of that host, of another boot.
std::vector<v1::JournalRecord> RunsOnLocalhostOf(const std::string& host) {
  std::vector<v1::JournalRecord> records(3);
  v1::Launcher& taken = *records[0].mutable_generation_taken();
  taken.set_generation(3);
  taken.set_host(host);
  taken.set_boot_id("another boot");
  records[1].mutable_attempt_begins()->set_generation(3);
  records[1].mutable_attempt_begins()->add_hosts("localhost");
  v1::AttemptRuns& runs = *records[2].mutable_attempt_runs();
  runs.set_world_size(1);
  runs.add_nodes()->add_workers()->set_rank(0);
  return records;
}

// A launcher here would look for them here, find none, and take the job for lost.
TEST_F(CommandsTest, AJobOnLocalhostOfAnotherMachineIsLeftToThatMachine) {
  const auto job = Accept("dtrain-far");
  Append(job, RunsOnLocalhostOf("login2"));
  // Each waits a while for the launcher's supervisor there.
  Program attaches = Start({"attach", "dtrain-far"});
  Program waits = Start({"wait", "dtrain-far"});
  Program stops = Start({"stop", "dtrain-far"});
  Program resumes = Start({"resume", "dtrain-far"});
  for (Program* const program : {&attaches, &waits, &stops, &resumes}) {
    EXPECT_EQ(program->Wait(), 207) << program->err;
    EXPECT_THAT(program->err, AllOf(HasSubstr("run on login2 itself"),
                                    HasSubstr("run `dtrain attach dtrain-far` there")));
  }
  EXPECT_EQ(job.LastStanding().launcher.pid(), 0u);
  EXPECT_FALSE(job.HasSummary());
}

TEST_F(CommandsTest, AfterARebootAJobOnLocalhostIsHandedToANewLauncher) {
  const auto job = Accept("dtrain-near", "", {"launch", "--no-such-flag", "true"});
  Append(job, RunsOnLocalhostOf(detached::Ourselves().host()));
  EXPECT_THAT(Run({"wait", "dtrain-near"}).err, Not(HasSubstr("itself (localhost)")));
  EXPECT_TRUE(fs::exists(job.path() + "/launcher.log"));
}

TEST_F(CommandsTest, AJobOfANewerVersionIsLeftAlone) {
  const auto job = Accept("dtrain-newer");
  v1::JournalRecord header = journal::Header("dtrain-newer", "99");
  header.mutable_header()->set_version(journal::kVersion + 1);
  std::string frames;
  ASSERT_TRUE(journal::AppendRecord(header, true, &frames).ok());
  std::ofstream(job.path() + "/journal", std::ios::binary) << frames;
  for (const char* command : {"attach", "wait", "stop"}) {
    const Ran ran = Run({command, "newer"});
    EXPECT_EQ(ran.code, 207) << command;
    EXPECT_THAT(ran.err, HasSubstr("a newer dtrain (99) has written it")) << command;
  }
  EXPECT_THAT(Run({"show", "newer"}).out, HasSubstr("a newer dtrain (99) has written it"));
  EXPECT_TRUE(fs::exists(job.path() + "/journal"));
}

TEST_F(CommandsTest, NothingIsReadWhereOthersMayWrite) {
  End(Accept("dtrain-one"), 0);
  chmod(jobs_->place().c_str(), 0777);
  for (const Strings& words :
       {Strings{"history"}, Strings{"show", "one"}, Strings{"wait", "one"}, Strings{"prune"},
        Strings{"attach", "one"}, Strings{"status", "one"}, Strings{"ps"}}) {
    const Ran ran = Run(words);
    EXPECT_EQ(ran.code, 207) << words[0];
    EXPECT_THAT(ran.err, HasSubstr(jobs_->place())) << words[0];
  }
}

// No launcher could listen there: that is in the way of nothing that has a folder.
TEST_F(CommandsTest, WithoutARuntimeDirectoryJobsAreFoundByTheirFolders) {
  const std::string place = dir_ + "/run/dtrain";
  fs::create_directory(place);
  chmod(place.c_str(), 0755);
  EXPECT_THAT(Run({"status"}).err, HasSubstr(place));
  Ran ran = Run({"ps"});
  EXPECT_EQ(ran.out, "");
  EXPECT_THAT(ran.err, HasSubstr(place));
  const auto job = Accept("dtrain-abc", "train");
  Runs(job);
  Write(job, 0, "one\n");
  const os::FileLock lock = Hold(job);
  for (const Strings& args : {Strings{"status"}, Strings{"status", "train"}}) {
    ran = Run(args);
    EXPECT_EQ(ran.code, 0) << ran.err;
    EXPECT_THAT(ran.out, HasSubstr("dtrain-abc (train): running"));
  }
  EXPECT_EQ(Run({"logs", "-r0", "train"}).out, "one\n");
  EXPECT_THAT(Run({"top"}).err, HasSubstr("dtrain-abc is controlled by process 4242 on login2"));
  EXPECT_THAT(Run({"stop"}).err, HasSubstr("\n  dtrain stop dtrain-abc  # launched from "));
  EXPECT_THAT(Run({"status", "nobody"}).err, HasSubstr(place));
  ran = Run({"ps"});
  EXPECT_NE(ran.code, 0);
  EXPECT_THAT(ran.out, HasSubstr("dtrain-abc"));
  EXPECT_THAT(ran.err, HasSubstr(place));
}

// Variables that are flags are the job's, and those of now are not.
TEST_F(CommandsTest, RerunHasTheFlagsThatWereVariables) {
  v1::Spec spec;
  spec.set_job_id("dtrain-old");
  for (const char* word : {"launch", "--dry-run", "-H", "nowhere.invalid:4", "--", "true"}) {
    spec.add_argv(word);
  }
  v1::EnvVar& then = *spec.add_flag_variables();
  then.set_name("DTRAIN_NP");
  then.set_value("2");
  spec.set_foreground(true);
  spec.set_working_directory(dir_ + "/work");
  ASSERT_TRUE(jobs_->Accept(spec).ok());
  const Ran plain = Run({"rerun", "dtrain-old"});
  EXPECT_EQ(plain.code, 0) << plain.err;
  setenv("DTRAIN_NP", "3", 1);
  setenv("DTRAIN_PPN", "1", 1);
  const Ran again = Run({"rerun", "dtrain-old"});
  unsetenv("DTRAIN_NP");
  unsetenv("DTRAIN_PPN");
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(again.out, plain.out);
}

TEST_F(CommandsTest, RerunLaunchesTheSameWordsThere) {
  const auto job =
      Accept("dtrain-old", "", {"/usr/bin/dtrain", "launch", "--no-such-flag", "true"});
  End(job, 0);
  Ran ran = Run({"rerun", "dtrain-old"});
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("--no-such-flag"));
  End(Accept("dtrain-odd", "", {"rm", "-rf"}), 0);
  ran = Run({"rerun", "dtrain-odd"});
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("not known to this version: rm"));
  End(Accept("dtrain-gone"), 0);
  fs::remove_all(dir_ + "/work");
  ran = Run({"rerun", "gone"});
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err, HasSubstr(dir_ + "/work"));
}

TEST_F(CommandsTest, StopNamesTheMachineOnWhichTheLauncherIs) {
  const auto job = Accept("dtrain-far");
  const os::FileLock lock = Hold(job);
  const Ran ran = Run({"stop", "dtrain-far"});
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err, AllOf(HasSubstr("process 4242 on login2"), HasSubstr("there")));
  End(job, 0);
  EXPECT_THAT(Run({"stop", "dtrain-far"}).err, HasSubstr("has ended already"));
}

TEST_F(CommandsTest, WhoSaysThatAJobHasEndedNamesHostsThatMayStillRunIt) {
  const auto job = Accept("dtrain-abc");
  Runs(job);
  std::string summary = Summary(202);
  const std::string host = R"({"host": "node2"})";
  summary.replace(summary.find(host), host.size(), R"({"host": "node2", "lost": true})");
  ASSERT_TRUE(job.WriteSummary(summary).ok());
  const std::string line = "dtrain-abc has lost node2, where its workers may live on until 20";
  Ran ran = Run({"wait", "dtrain-abc"});
  EXPECT_EQ(ran.code, 202);
  EXPECT_THAT(ran.err, AllOf(HasSubstr("dtrain-abc has ended with exit code 202\n"),
                             HasSubstr("dtrain: " + line),
                             HasSubstr(": `dtrain stop dtrain-abc` ends them\n")));
  ran = Run({"attach", "dtrain-abc"});
  EXPECT_EQ(ran.code, 202);
  EXPECT_THAT(ran.err, HasSubstr("dtrain: " + line));
  ran = Run({"ps", "-a"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("\n" + line));
  EXPECT_THAT(Run({"ps"}).out, Not(HasSubstr("has lost")));
  // Long ago.
  fs::last_write_time(job.path() + "/summary.json",
                      fs::file_time_type::clock::now() - std::chrono::hours(48));
  EXPECT_THAT(Run({"wait", "dtrain-abc"}).err, Not(HasSubstr("has lost")));
  EXPECT_THAT(Run({"ps", "-a"}).out, Not(HasSubstr("has lost")));
}

TEST_F(CommandsTest, AttachSaysWhatTheLogFilesLack) {
  const auto job = Accept("dtrain-abc");
  Runs(job);
  const std::string lack = "output is missing in the log files (--log-dir): no room";
  ASSERT_TRUE(job.WriteSummary(
                     absl::StrCat(R"({"exit_code": 207, "warnings": ["other", ")", lack, R"("]})"))
                  .ok());
  const Ran ran = Run({"attach", "dtrain-abc"});
  EXPECT_EQ(ran.code, 207);
  EXPECT_THAT(ran.err, AllOf(HasSubstr("dtrain: " + lack), Not(HasSubstr("other"))));
}

// Somebody has edited it.
TEST_F(CommandsTest, AVerdictOfAnyShapeIsShownAsFarAsItCanBe) {
  const auto job = Accept("dtrain-abc");
  Runs(job);
  End(job, 7);
  for (const char* verdict :
       {"5", "[]", "null", "\"x\"", "{}", "{\"kind\": 5}", "{\"kind\": []}"}) {
    ASSERT_TRUE(
        job.WriteSummary(absl::StrCat("{\"exit_code\": 7, \"verdict\": ", verdict, "}")).ok());
    const Ran ran = Run({"show", "--json", "dtrain-abc"});
    EXPECT_EQ(ran.code, 0) << verdict << ran.err;
    EXPECT_THAT(ran.out, HasSubstr("\"exit_code\": 7")) << verdict;
    EXPECT_THAT(ran.out, testing::Not(HasSubstr("\"stop\""))) << verdict;
    EXPECT_EQ(Run({"show", "dtrain-abc"}).code, 0) << verdict;
  }
}

}  // namespace
}  // namespace dtrain::history
