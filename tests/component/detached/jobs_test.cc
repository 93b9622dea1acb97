// SPDX-License-Identifier: Apache-2.0
// F3, F4, F5, F8, F10, H4, H7: jobs on disk.
#include "launcher/detached/jobs.h"

#include <atomic>
#include <map>
#include <optional>
#include <set>
#include <thread>

#include "absl/strings/str_format.h"
#include "common/os/append_file.h"
#include "common/os/file_lock.h"
#include "launcher/detached/ourselves.h"
#include "tests/component/detached/disk_fixture.h"

namespace dtrain::detached {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::UnorderedElementsAre;

constexpr uid_t kMallory = 4242;

class JobsTest : public DiskTest {
 protected:
  JobsTest() : place_(dir_ + "/state/dtrain"), jobs_(place_) {}

  static v1::Spec Spec(const std::string& id, const std::string& key = "",
                       const std::string& name = "") {
    v1::Spec spec;
    spec.set_job_id(id);
    spec.set_key(key);
    spec.set_name(name);
    spec.add_argv("train.py");
    spec.mutable_accepted_by()->set_unix_nanos(1'000'000'000);
    v1::EnvVar& secret = *spec.add_environment();
    secret.set_name("API_KEY");
    secret.set_value("hunter2");
    return spec;
  }
  JobFolder Accept(const v1::Spec& spec) {
    auto accepted = jobs_.Accept(spec);
    EXPECT_TRUE(accepted.ok()) << accepted.status();
    return accepted.ok() ? accepted->folder : JobFolder("/nonexistent");
  }
  // As its launcher does, at the end.
  void End(const JobFolder& job, int code = 0) {
    ASSERT_TRUE(job.WriteSummary(absl::StrCat("{\"exit_code\": ", code, "}\n")).ok());
    fs::remove(job.path() + "/journal");
    ASSERT_TRUE(jobs_.Settle(job).ok());
  }
  // So many nanoseconds after another.
  static void SetEnd(const JobFolder& job, absl::Time when) {
    const auto nanos = std::chrono::nanoseconds(absl::ToUnixNanos(when));
    const std::chrono::sys_time<std::chrono::nanoseconds> time(nanos);
    fs::last_write_time(job.path() + "/summary.json", std::chrono::file_clock::from_sys(time));
  }
  std::map<std::string, v1::JobEntry> List() {
    std::map<std::string, v1::JobEntry> jobs;
    auto listed = jobs_.List();
    EXPECT_TRUE(listed.ok()) << listed.status();
    if (listed.ok()) {
      for (v1::JobEntry& job : *listed) jobs[job.job_id()] = std::move(job);
    }
    return jobs;
  }
  std::set<std::string> Ids() {
    std::set<std::string> ids;
    for (const auto& [id, job] : List()) ids.insert(id);
    return ids;
  }
  std::string WhyNot(const v1::Spec& spec, absl::StatusCode code) {
    const absl::Status status = jobs_.Accept(spec).status();
    EXPECT_EQ(status.code(), code) << status;
    return std::string(status.message());
  }
  static std::string Found(const absl::StatusOr<JobFolder>& job) {
    return job.ok() ? job->id() : std::string(job.status().message());
  }

  std::string place_;
  Jobs jobs_;
};

// F3
TEST_F(JobsTest, AnAcceptedJobIsThere) {
  const JobFolder job = Accept(Spec("dtrain-1a"));
  EXPECT_EQ(job.path(), place_ + "/jobs/dtrain-1a");
  for (const std::string& path : {place_, place_ + "/jobs", place_ + "/keys", job.path()}) {
    EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_all) << path;
  }
  EXPECT_EQ(fs::status(job.path() + "/spec").permissions(),
            fs::perms::owner_read | fs::perms::owner_write);
  const auto spec = job.ReadSpec();
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->SerializeAsString(), Spec("dtrain-1a").SerializeAsString());
  const auto journal = job.ReadJournal();
  ASSERT_TRUE(journal.ok()) << journal.status();
  EXPECT_EQ(journal->state.phase(), v1::JournalState::PHASE_ACCEPTED);
  EXPECT_EQ(journal->header.job_id(), "dtrain-1a");
  EXPECT_THAT(Ids(), ElementsAre("dtrain-1a"));
}

// Nobody may find it before it is what it is to be.
TEST_F(JobsTest, AJobIsFilledBeforeItIsThere) {
  v1::JournalState state;
  state.set_phase(v1::JournalState::PHASE_RUNS);
  state.mutable_attempt()->set_attempt(3);
  std::optional<os::FileLock> lock;
  const auto accepted = jobs_.Accept(Spec("dtrain-1a"), [&](const JobFolder& draft) {
    EXPECT_THAT(Ids(), IsEmpty());
    auto taken = draft.Lock(Ourselves());
    EXPECT_TRUE(taken.ok()) << taken.status();
    if (taken.ok()) lock = *std::move(taken);
    return draft.BeginJournal(Spec("dtrain-1a"), state);
  });
  ASSERT_TRUE(accepted.ok()) << accepted.status();
  EXPECT_FALSE(accepted->was_there);
  const auto journal = accepted->folder.ReadJournal();
  ASSERT_TRUE(journal.ok()) << journal.status();
  EXPECT_EQ(journal->state.SerializeAsString(), state.SerializeAsString());
  EXPECT_TRUE(absl::IsUnavailable(accepted->folder.Lock(Ourselves()).status()));
  lock.reset();
  EXPECT_TRUE(accepted->folder.Lock(Ourselves()).ok());
  // One that cannot be filled is not there.
  const auto failed = jobs_.Accept(Spec("dtrain-2b"),
                                   [](const JobFolder&) { return absl::DataLossError("no room"); });
  EXPECT_TRUE(absl::IsDataLoss(failed.status()));
  EXPECT_THAT(Ids(), ElementsAre("dtrain-1a"));
  EXPECT_FALSE(fs::exists(place_ + "/jobs/.new.dtrain-2b"));
}

// For whoever watches the folder: it answers.
TEST_F(JobsTest, WhoWaitsForTheLockBeats) {
  const JobFolder job = Accept(Spec("dtrain-1a"));
  End(job);
  const auto release_after_two = [this](auto&& call) {
    auto taken = os::FileLock::Take(place_ + "/lock", "");
    EXPECT_TRUE(taken.ok()) << taken.status();
    std::optional<os::FileLock> lock;
    if (taken.ok()) lock = *std::move(taken);
    int beats = 0;
    call([&] {
      if (++beats == 2) lock.reset();
    });
    EXPECT_GE(beats, 2);
  };
  release_after_two(
      [this](Beat beat) { EXPECT_TRUE(jobs_.Accept(Spec("dtrain-2b"), nullptr, beat).ok()); });
  release_after_two([&](Beat beat) { EXPECT_TRUE(jobs_.Remove(job, false, beat).ok()); });
  EXPECT_THAT(Ids(), ElementsAre("dtrain-2b"));
}

TEST_F(JobsTest, RemovingMuchBeats) {
  const JobFolder job = Accept(Spec("dtrain-1a"));
  fs::create_directories(job.path() + "/logs/0");
  for (int i = 0; i < 20; ++i) WriteFile(absl::StrCat(job.path(), "/logs/0/", i), "x");
  // What they point to stays.
  fs::create_directory(dir_ + "/elsewhere");
  WriteFile(dir_ + "/elsewhere/kept", "x");
  fs::create_directory_symlink(dir_ + "/elsewhere", job.path() + "/logs/link");
  End(job);
  int beats = 0;
  EXPECT_TRUE(jobs_.Remove(job, false, [&] { ++beats; }).ok());
  EXPECT_GE(beats, 20);
  EXPECT_TRUE(fs::is_empty(place_ + "/jobs"));
  EXPECT_TRUE(fs::exists(dir_ + "/elsewhere/kept"));
}

// The client has made the id before its first try.
TEST_F(JobsTest, TheSameIdIsTheSameJob) {
  Accept(Spec("dtrain-1a"));
  v1::Spec again = Spec("dtrain-1a");
  again.mutable_environment(0)->set_value("other");
  auto accepted = jobs_.Accept(again);
  ASSERT_TRUE(accepted.ok()) << accepted.status();
  EXPECT_TRUE(accepted->was_there);
  again.add_argv("--more");
  EXPECT_THAT(WhyNot(again, absl::StatusCode::kAlreadyExists),
              HasSubstr("there is a job dtrain-1a, with another command line"));
}

// F10
TEST_F(JobsTest, TheSameKeyIsTheSameJob) {
  Accept(Spec("dtrain-1a", "night-7"));
  auto again = jobs_.Accept(Spec("dtrain-2b", "night-7"));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->was_there);
  EXPECT_EQ(again->folder.id(), "dtrain-1a");
  EXPECT_THAT(Ids(), ElementsAre("dtrain-1a"));
  v1::Spec other = Spec("dtrain-2b", "night-7");
  other.set_working_directory("/elsewhere");
  EXPECT_THAT(WhyNot(other, absl::StatusCode::kAlreadyExists),
              HasSubstr("the key night-7 belongs to job dtrain-1a"));
  // Also when it has ended, without its environment.
  End(again->folder);
  again = jobs_.Accept(Spec("dtrain-3c", "night-7"));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->folder.id(), "dtrain-1a");
  // A job that is removed takes its key along.
  ASSERT_TRUE(jobs_.Remove(again->folder).ok());
  again = jobs_.Accept(Spec("dtrain-3c", "night-7"));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_FALSE(again->was_there);
}

// F10: a try that was killed after it had written the key.
TEST_F(JobsTest, AKeyWithoutItsJobIsFree) {
  Accept(Spec("dtrain-0"));
  ASSERT_TRUE(os::ReplaceFile(place_ + "/keys/night-7", "dtrain-1a").ok());
  fs::create_directories(place_ + "/jobs/.new.dtrain-1a/logs");
  EXPECT_EQ(Accept(Spec("dtrain-2b", "night-7")).id(), "dtrain-2b");
  EXPECT_EQ(Accept(Spec("dtrain-1a")).id(), "dtrain-1a");
  EXPECT_THAT(Ids(), ElementsAre("dtrain-0", "dtrain-1a", "dtrain-2b"));
}

// As where a file server answers with errors for a while.
TEST_F(JobsTest, AJobThatCannotBeLookedAtIsNotGone) {
  const JobFolder job = Accept(Spec("dtrain-1a", "night-7"));
  fs::rename(job.path(), place_ + "/aside");
  fs::create_symlink("dtrain-1a", job.path());  // to itself
  EXPECT_THAT(jobs_.Accept(Spec("dtrain-2b", "night-7")).status().message(), HasSubstr("look at"));
  EXPECT_THAT(jobs_.Find("dtrain-1a").status().message(), HasSubstr("symbolic links"));
}

TEST_F(JobsTest, OfManyWithTheSameKeyAtOnceOneIsAccepted) {
  constexpr int kCallers = 16;
  std::vector<pid_t> callers;
  for (int i = 0; i < kCallers; ++i) {
    callers.push_back(fork());
    if (callers.back() == 0) {
      const auto accepted =
          Jobs(place_).Accept(Spec(absl::StrCat("dtrain-", i), "the-key", "name"));
      _exit(!accepted.ok() ? 2 : accepted->was_there ? 1 : 0);
    }
  }
  std::map<int, int> ends;
  for (const pid_t caller : callers) {
    int status = 0;
    ASSERT_EQ(waitpid(caller, &status, 0), caller);
    ++ends[WEXITSTATUS(status)];
  }
  EXPECT_EQ(ends[0], 1);
  EXPECT_EQ(ends[1], kCallers - 1);
  EXPECT_EQ(Ids().size(), 1);
}

TEST_F(JobsTest, NamesAreUniqueAmongRunningJobs) {
  const JobFolder first = Accept(Spec("dtrain-1a", "", "night"));
  EXPECT_THAT(WhyNot(Spec("dtrain-2b", "", "night"), absl::StatusCode::kAlreadyExists),
              HasSubstr("job dtrain-1a runs by the name night"));
  End(first);
  Accept(Spec("dtrain-2b", "", "night"));
}

TEST_F(JobsTest, WordsThatCannotBeFilesAreRefused) {
  for (const char* word : {"", "..", ".x", "a/b", "-x", "a b", "a\n"}) {
    EXPECT_THAT(WhyNot(Spec(word), absl::StatusCode::kInvalidArgument), HasSubstr("job id"));
    if (*word == 0) continue;
    WhyNot(Spec("id", word), absl::StatusCode::kInvalidArgument);
    WhyNot(Spec("id", "", word), absl::StatusCode::kInvalidArgument);
  }
  WhyNot(Spec(std::string(200, 'x')), absl::StatusCode::kInvalidArgument);
  v1::Spec not_utf8 = Spec("id");
  not_utf8.mutable_environment(0)->set_name("X\xff");
  EXPECT_THAT(WhyNot(not_utf8, absl::StatusCode::kInvalidArgument), HasSubstr("is not UTF-8"));
  EXPECT_FALSE(fs::exists(place_));
}

TEST_F(JobsTest, IsFound) {
  const JobFolder night = Accept(Spec("dtrain-1a2b00", "", "night"));
  Accept(Spec("dtrain-1a2b3c", "", "day"));
  Accept(Spec("other"));
  EXPECT_EQ(Found(jobs_.Find("dtrain-1a2b00")), "dtrain-1a2b00");
  EXPECT_EQ(Found(jobs_.Find("dtrain-1a2b0")), "dtrain-1a2b00");
  EXPECT_EQ(Found(jobs_.Find("1a2b3")), "dtrain-1a2b3c");
  EXPECT_EQ(Found(jobs_.Find("othe")), "other");
  EXPECT_EQ(Found(jobs_.Find("day")), "dtrain-1a2b3c");
  EXPECT_EQ(Found(jobs_.Find("1a2b")),
            "several jobs begin with \"1a2b\": dtrain-1a2b00, dtrain-1a2b3c");
  for (const char* none : {"", "nigh", "../jobs/other", "x\x1b[0m"}) {
    EXPECT_TRUE(absl::IsNotFound(jobs_.Find(none).status())) << Found(jobs_.Find(none));
  }
  // Of a name that several had, the running one, else the last.
  End(night);
  const JobFolder second = Accept(Spec("dtrain-2", "", "night"));
  EXPECT_EQ(Found(jobs_.Find("night")), "dtrain-2");
  ASSERT_TRUE(second.WriteSummary("{}").ok());
  SetEnd(second, absl::Now() + absl::Seconds(5));
  End(second);
  EXPECT_EQ(Found(jobs_.Find("night")), "dtrain-2");
}

// Of a name that is also the beginning of another job's id, too: a second `dtrain stop` of it must
// not end that one.
TEST_F(JobsTest, ANameIsNeverTakenForTheBeginningOfAnId) {
  Accept(Spec("dtrain-bb16aa"));
  const JobFolder named = Accept(Spec("dtrain-77", "", "bb16"));
  EXPECT_EQ(Found(jobs_.Find("bb16")), "dtrain-77");
  End(named);
  EXPECT_EQ(Found(jobs_.Find("bb16")), "dtrain-77");
}

TEST_F(JobsTest, AShortBeginningIsOnlyAGuess) {
  Accept(Spec("dtrain-1a2b00"));
  Accept(Spec("other"));
  for (const char* text : {"1a2", "dtrain-1a2", "d", "dtrain-"}) {
    const auto found = jobs_.Find(text);
    EXPECT_TRUE(absl::IsInvalidArgument(found.status())) << text;
    EXPECT_THAT(found.status().message(), HasSubstr("too short for the beginning of an id"))
        << text;
    EXPECT_THAT(found.status().message(), HasSubstr("fits dtrain-1a2b00")) << text;
  }
  EXPECT_EQ(Found(jobs_.Find("1a2b")), "dtrain-1a2b00");
}

TEST_F(JobsTest, WhereNothingWasEverThereIsNothing) {
  EXPECT_THAT(Ids(), IsEmpty());
  EXPECT_TRUE(absl::IsNotFound(jobs_.Find("x").status()));
  EXPECT_FALSE(fs::exists(place_));
}

// F5
TEST_F(JobsTest, AFolderThatOthersCanChangeIsRefused) {
  fs::create_directories(place_);
  fs::permissions(place_, fs::perms::all);
  EXPECT_THAT(WhyNot(Spec("a"), absl::StatusCode::kPermissionDenied),
              AllOf(HasSubstr(place_), HasSubstr("fix it with: chmod 700 ")));
  fs::permissions(place_, fs::perms::owner_all);
  const std::string parent = dir_ + "/state";
  fs::permissions(parent, fs::perms::all);
  EXPECT_THAT(WhyNot(Spec("a"), absl::StatusCode::kPermissionDenied),
              AllOf(HasSubstr("chmod go-w " + parent)));
  fs::permissions(parent, fs::perms::all | fs::perms::sticky_bit);
  Accept(Spec("a"));
  fs::permissions(place_ + "/jobs", fs::perms::all);
  EXPECT_THAT(WhyNot(Spec("b"), absl::StatusCode::kPermissionDenied), HasSubstr("/jobs"));
}

TEST_F(JobsTest, AFolderOfSomebodyElseIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to make a folder that is another user's";
  fs::create_directories(place_);
  ASSERT_EQ(chown(place_.c_str(), kMallory, kMallory), 0);
  EXPECT_THAT(WhyNot(Spec("a"), absl::StatusCode::kPermissionDenied), HasSubstr("4242"));
  ASSERT_EQ(chown(place_.c_str(), 0, 0), 0);
  ASSERT_EQ(chown((dir_ + "/state").c_str(), kMallory, kMallory), 0);
  EXPECT_THAT(WhyNot(Spec("a"), absl::StatusCode::kPermissionDenied), HasSubstr("4242"));
}

TEST_F(JobsTest, AFolderThatIsALinkOrAFileIsRefused) {
  fs::create_directories(dir_ + "/state");
  fs::create_directories(dir_ + "/elsewhere");
  fs::create_symlink(dir_ + "/elsewhere", place_);
  EXPECT_THAT(WhyNot(Spec("a"), absl::StatusCode::kPermissionDenied),
              HasSubstr("is a symbolic link"));
  fs::remove(place_);
  WriteFile(place_, "");
  EXPECT_THAT(WhyNot(Spec("a"), absl::StatusCode::kPermissionDenied),
              HasSubstr("is not a directory"));
}

TEST_F(JobsTest, AReadOnlyFolderCanBeRead) {
  const std::string disk = SmallDisk(1 << 20);
  if (disk.empty()) GTEST_SKIP() << "needs root, to mount a file system";
  jobs_ = Jobs(disk + "/dtrain");
  const JobFolder job = Accept(Spec("a"));
  End(job, 7);
  Accept(Spec("b"));
  ASSERT_EQ(mount(nullptr, disk.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr), 0);
  EXPECT_THAT(WhyNot(Spec("c"), absl::StatusCode::kPermissionDenied),
              HasSubstr("Read-only file system"));
  EXPECT_THAT(Ids(), ElementsAre("a", "b"));
  EXPECT_EQ(List()["a"].exit_code(), 7);
  Jobs nowhere(disk + "/other");
  EXPECT_THAT(std::string(nowhere.Accept(Spec("c")).status().message()),
              HasSubstr("Read-only file system"));
}

// H4, H6
TEST_F(JobsTest, OnAFullDiskAJobIsRefusedAndLeavesNothing) {
  const std::string disk = SmallDisk(256 << 10);
  if (disk.empty()) GTEST_SKIP() << "needs root, to mount a small file system";
  jobs_ = Jobs(disk + "/dtrain");
  Accept(Spec("a"));
  Fill(disk);
  EXPECT_THAT(WhyNot(Spec("b", "key"), absl::StatusCode::kResourceExhausted),
              HasSubstr("No space left on device"));
  EXPECT_THAT(Ids(), ElementsAre("a"));
  EXPECT_FALSE(fs::exists(disk + "/dtrain/jobs/.new.b"));
  MakeRoom(disk);
  EXPECT_EQ(Accept(Spec("b", "key")).id(), "b");
}

TEST_F(JobsTest, AnEndedJobHasNoSecretsAndNoJournal) {
  const JobFolder job = Accept(Spec("dtrain-1a", "k", "night"));
  EXPECT_THAT(ReadFile(job.path() + "/spec"), HasSubstr("hunter2"));
  ASSERT_TRUE(job.WriteSummary("{\"exit_code\": 7}").ok());
  ASSERT_TRUE(jobs_.Settle(job).ok());
  EXPECT_THAT(ReadFile(job.path() + "/spec"), testing::Not(HasSubstr("hunter2")));
  EXPECT_FALSE(fs::exists(job.path() + "/journal"));
  const v1::JobEntry entry = List()["dtrain-1a"];
  EXPECT_EQ(entry.exit_code(), 7);
  EXPECT_EQ(entry.name(), "night");
  EXPECT_EQ(entry.key(), "k");
  EXPECT_EQ(entry.accepted_unix_nanos(), 1'000'000'000);
  EXPECT_GT(entry.ended_unix_nanos(), entry.accepted_unix_nanos());
  EXPECT_GT(entry.bytes(), 0);
}

// Launches in a loop cost no detached job its output.
TEST_F(JobsTest, JobsThatEndedWhereTheyWereLaunchedAreCountedByThemselves) {
  const auto add = [&](const std::string& id, bool foreground) {
    v1::Spec spec;
    spec.set_job_id(id);
    spec.add_argv("launch");
    spec.set_foreground(foreground);
    const absl::Status added = jobs_.AddEnded(id, [&](const JobFolder& draft) {
      const absl::Status written = draft.WriteSummary("{\"exit_code\": 0}");
      return written.ok() ? os::ReplaceFile(draft.path() + "/spec", spec.SerializeAsString())
                          : written;
    });
    ASSERT_TRUE(added.ok()) << added;
  };
  add("dtrain-detached", false);
  for (int i = 0; i < 5; ++i) add(absl::StrCat("dtrain-", i), true);
  Retention keep;
  keep.jobs = 3;
  const auto gone = jobs_.Prune(keep, absl::Now());
  ASSERT_TRUE(gone.ok()) << gone.status();
  EXPECT_THAT(*gone, testing::ElementsAre("dtrain-0", "dtrain-1"));
  keep.bytes = 0;
  const auto all = jobs_.Prune(keep, absl::Now());
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_THAT(*all, testing::ElementsAre("dtrain-2", "dtrain-3", "dtrain-4", "dtrain-detached"));
}

// Its launcher was killed between the summary and the end of --on-end: somebody must do the rest.
TEST_F(JobsTest, AJobWithSomethingLeftToDoIsNotSettledByOthers) {
  const JobFolder job = Accept(Spec("a"));
  ASSERT_TRUE(job.WriteSummary("{\"exit_code\": 1}").ok());
  EXPECT_EQ(List()["a"].exit_code(), 1);
  EXPECT_GT(List()["a"].ended_unix_nanos(), 0);
  EXPECT_FALSE(job.IsSettled());
  EXPECT_TRUE(fs::exists(job.path() + "/journal"));
  EXPECT_THAT(ReadFile(job.path() + "/spec"), HasSubstr("hunter2"));
  EXPECT_THAT(*jobs_.Prune({absl::ZeroDuration(), 0, 0}, absl::Now() + absl::Hours(1)), IsEmpty());
  const Jobs impatient(place_, std::chrono::milliseconds(200));
  {
    const auto at_it = job.Lock(Ourselves());
    ASSERT_TRUE(at_it.ok());
    EXPECT_TRUE(absl::IsFailedPrecondition(impatient.Remove(job)));
  }
  // Nobody will do the rest of this one: it can be removed all the same.
  const JobFolder left = Accept(Spec("b"));
  ASSERT_TRUE(left.WriteSummary("{\"exit_code\": 1}").ok());
  EXPECT_TRUE(impatient.Remove(left).ok());
  EXPECT_FALSE(fs::exists(left.path()));
  // It was killed after its last record: the next who looks tidies up.
  auto opened = job.OpenJournal();
  ASSERT_TRUE(opened.ok());
  v1::JournalRecord verdict, ended;
  verdict.mutable_verdict();
  ended.mutable_ended();
  std::string frames;
  ASSERT_TRUE(journal::AppendRecord(verdict, true, &frames).ok());
  ASSERT_TRUE(journal::AppendRecord(ended, false, &frames).ok());
  ASSERT_TRUE(opened->first.Commit(frames).ok());
  EXPECT_TRUE(job.IsSettled());
  List();
  EXPECT_FALSE(fs::exists(job.path() + "/journal"));
  EXPECT_THAT(ReadFile(job.path() + "/spec"), testing::Not(HasSubstr("hunter2")));
}

TEST_F(JobsTest, TheIndexIsMadeAgain) {
  for (int i = 0; i < 20; ++i) End(Accept(Spec(absl::StrFormat("job-%02d", i))), i);
  Accept(Spec("running"));
  const std::string index = place_ + "/index";
  const std::string whole = ReadFile(index);
  ASSERT_FALSE(whole.empty());
  const auto expect_all = [&] {
    const auto jobs = List();
    EXPECT_EQ(jobs.size(), 21);
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(jobs.at(absl::StrFormat("job-%02d", i)).exit_code(), i);
    }
    EXPECT_EQ(ReadFile(index).size(), whole.size());
  };
  expect_all();
  fs::remove(index);
  expect_all();
  for (size_t at = 0; at < whole.size(); at += 7) {
    Damage(index, at);
    expect_all();
  }
  WriteFile(index, whole.substr(0, whole.size() / 2));
  expect_all();
  // One that says more than there is.
  fs::remove_all(place_ + "/jobs/job-00");
  EXPECT_EQ(List().size(), 20);
  EXPECT_LT(ReadFile(index).size(), whole.size());
}

TEST_F(JobsTest, ADamagedSpecHidesNoOtherJob) {
  const JobFolder job = Accept(Spec("a"));
  Accept(Spec("b"));
  WriteFile(job.path() + "/spec", "\xff\xff");
  EXPECT_TRUE(absl::IsDataLoss(job.ReadSpec().status()));
  EXPECT_THAT(Ids(), ElementsAre("a", "b"));
}

// F8
TEST_F(JobsTest, TheHolderOfAJobIsNamed) {
  const JobFolder job = Accept(Spec("dtrain-1a"));
  EXPECT_FALSE(job.Holder()->has_value());
  v1::Launcher self;
  self.set_generation(3);
  self.set_host("login\x1b[31m1");
  self.set_boot_id("boot");
  self.set_pid(4711);
  self.set_start_time(99);
  self.set_unix_nanos(absl::ToUnixNanos(absl::Now()));
  auto lock = job.Lock(self);
  ASSERT_TRUE(lock.ok()) << lock.status();
  EXPECT_EQ((*job.Holder())->SerializeAsString(), self.SerializeAsString());
  const absl::Status second = job.Lock(self).status();
  EXPECT_TRUE(absl::IsUnavailable(second));
  EXPECT_THAT(std::string(second.message()),
              HasSubstr("job dtrain-1a is controlled by the launcher with process id 4711 on "
                        "login\\x1b[31m1, since 20"));
  self.set_generation(4);
  JobFolder::Describe({self, Standing::Stage::kRuns, "dtrain-1a.service"}, *lock);
  EXPECT_EQ(job.LastStanding().stage, Standing::Stage::kRuns);
  EXPECT_EQ(job.LastStanding().unit, "dtrain-1a.service");
  EXPECT_EQ((*job.Holder())->generation(), 4);
  WriteFile(job.path() + "/lock", "{ half of");
  EXPECT_THAT(std::string(job.Lock(self).status().message()),
              HasSubstr("is controlled by another launcher"));
  { const os::FileLock released = *std::move(lock); }
  EXPECT_FALSE(job.Holder()->has_value());
}

// F4
TEST_F(JobsTest, AJobWithADamagedJournalIsMovedAside) {
  const JobFolder job = Accept(Spec("a"));
  Accept(Spec("b"));
  Damage(job.path() + "/journal", 12);
  const absl::Status opened = job.OpenJournal().status();
  EXPECT_TRUE(absl::IsDataLoss(opened)) << opened;
  EXPECT_THAT(std::string(opened.message()),
              AllOf(HasSubstr("job a cannot be controlled any more, and its folder is now " +
                              place_ + "/lost+found/a"),
                    HasSubstr("--away")));
  EXPECT_THAT(Ids(), ElementsAre("b"));
  EXPECT_TRUE(fs::exists(place_ + "/lost+found/a/spec"));
  // And the next of that id beside it.
  const JobFolder again = Accept(Spec("a"));
  Damage(again.path() + "/journal", 12);
  EXPECT_THAT(std::string(again.OpenJournal().status().message()), HasSubstr("lost+found/a."));
  EXPECT_TRUE(fs::exists(place_ + "/lost+found/a/spec"));
}

TEST_F(JobsTest, AJournalOfANewerVersionStays) {
  const JobFolder job = Accept(Spec("a"));
  v1::JournalRecord header = journal::Header("a", "9.9");
  header.mutable_header()->set_version(journal::kVersion + 1);
  std::string frames;
  ASSERT_TRUE(journal::AppendRecord(header, true, &frames).ok());
  WriteFile(job.path() + "/journal", frames);
  EXPECT_TRUE(absl::IsFailedPrecondition(job.OpenJournal().status()));
  EXPECT_EQ(ReadFile(job.path() + "/journal"), frames);
}

TEST_F(JobsTest, AJournalOfAnotherJobIsDamage) {
  const JobFolder a = Accept(Spec("a"));
  const JobFolder b = Accept(Spec("b"));
  fs::copy_file(a.path() + "/journal", b.path() + "/journal", fs::copy_options::overwrite_existing);
  EXPECT_THAT(std::string(b.OpenJournal().status().message()), HasSubstr("is that of job a"));
}

class PruneTest : public JobsTest {
 protected:
  // Ended so many days ago, the name says it.
  void EndedFor(int days, bool keep = false) {
    v1::Spec spec = Spec(absl::StrCat("days-", days));
    spec.set_keep(keep);
    const JobFolder job = Accept(spec);
    ASSERT_TRUE(job.WriteSummary("{}").ok());
    SetEnd(job, now_ - absl::Hours(24 * days));
    fs::remove(job.path() + "/journal");
    ASSERT_TRUE(jobs_.Settle(job).ok());
  }
  // Many of them: nothing waits for the disk.
  void EndedForUnsynced(int days) {
    const v1::Spec spec = Spec(absl::StrCat("days-", days));
    const JobFolder job(absl::StrCat(place_, "/jobs/", spec.job_id()));
    fs::create_directories(job.path() + "/logs");
    WriteFile(job.path() + "/spec", spec.SerializeAsString());
    WriteFile(job.path() + "/summary.json", "{}");
    SetEnd(job, now_ - absl::Hours(24 * days));
  }
  std::set<std::string> LeftOf(const Retention& most) {
    const auto gone = jobs_.Prune(most, now_);
    EXPECT_TRUE(gone.ok()) << gone.status();
    // Nothing but folders of jobs.
    for (const auto& entry : fs::directory_iterator(place_ + "/jobs")) {
      EXPECT_NE(entry.path().filename().string()[0], '.') << entry.path();
    }
    return Ids();
  }
  const absl::Time now_ = absl::Now() + absl::Hours(1);
};

TEST_F(PruneTest, ByAge) {
  for (const int days : {1, 29, 31, 40}) EndedFor(days, /*keep=*/days == 40);
  Accept(Spec("running"));
  EXPECT_THAT(LeftOf(Retention()), ElementsAre("days-1", "days-29", "days-40", "running"));
}

// Two looks must agree that a job is old, and a clock that was ahead at one of them is found out.
TEST_F(PruneTest, AClockThatJumpsMakesNoJobOld) {
  for (const int days : {1, 29, 31}) EndedFor(days);
  const absl::Duration age = Retention().age, day = absl::Hours(24);
  const auto look = [&](absl::Time now) {
    return jobs_.PruneSome(Retention(), jobs_.SureTime(now, age)).value();
  };
  EXPECT_THAT(look(now_), IsEmpty()) << "the first";
  EXPECT_THAT(look(now_ + absl::Hours(1)), IsEmpty());
  // What the look before has seen was true.
  EXPECT_THAT(look(now_ + 35 * day), ElementsAre("days-31"));
  EXPECT_THAT(look(now_ + 35 * day + absl::Hours(1)), IsEmpty());
  EXPECT_THAT(look(now_ + absl::Hours(2)), IsEmpty()) << "the clock is right again";
  EXPECT_THAT(look(now_ + 70 * day), IsEmpty());
  EXPECT_THAT(look(now_ - 20000 * day), IsEmpty());
  EXPECT_THAT(look(now_ + day + absl::Hours(3)), IsEmpty());
  EXPECT_THAT(look(now_ + 2 * day), IsEmpty());
  EXPECT_THAT(Ids(), ElementsAre("days-1", "days-29"));
  // Where it goes on to say so, it is believed.
  EXPECT_THAT(look(now_ + 3 * day), ElementsAre("days-29"));
}

TEST_F(PruneTest, ByNumber) {
  for (const int days : {1, 2, 3, 4, 5}) EndedFor(days, /*keep=*/days == 5);
  Accept(Spec("running"));
  EXPECT_THAT(LeftOf({absl::InfiniteDuration(), 2, UINT64_MAX}),
              ElementsAre("days-1", "days-2", "days-5", "running"));
  EXPECT_THAT(LeftOf({absl::InfiniteDuration(), 0, UINT64_MAX}), ElementsAre("days-5", "running"));
}

TEST_F(PruneTest, ByRoom) {
  for (const int days : {1, 2, 3}) EndedFor(days);
  const uint64_t bytes = List()["days-1"].bytes();
  EXPECT_THAT(LeftOf({absl::InfiniteDuration(), 500, 2 * bytes}), ElementsAre("days-1", "days-2"));
  EXPECT_THAT(LeftOf({absl::InfiniteDuration(), 500, 2 * bytes - 1}), ElementsAre("days-1"));
}

TEST_F(PruneTest, ALauncherThatEndsRemovesSomeAndWaitsForNobody) {
  EndedFor(200, /*keep=*/true);
  for (int days = 1; days <= 103; ++days) EndedForUnsynced(days);
  EXPECT_EQ(Ids().size(), 104u);
  const Retention none{absl::ZeroDuration(), 0, 0};
  {
    const auto lock = os::FileLock::Take(place_ + "/lock", "");
    ASSERT_TRUE(lock.ok());
    const TimePoint begin = Clock::now();
    EXPECT_THAT(*jobs_.PruneSome(none, now_), SizeIs(0));
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
  }
  EXPECT_THAT(*jobs_.PruneSome(none, now_), SizeIs(100));
  EXPECT_THAT(Ids(), ElementsAre("days-1", "days-2", "days-200", "days-3"));
  EXPECT_THAT(*jobs_.PruneSome(none, now_), SizeIs(3));
  EXPECT_THAT(*jobs_.PruneSome(none, now_), SizeIs(0));
  EXPECT_THAT(Ids(), ElementsAre("days-200"));
}

TEST_F(PruneTest, AJobWhoseLauncherIsStillThereStays) {
  for (const int days : {1, 2}) EndedFor(days);
  const auto ends = jobs_.Find("days-2");
  ASSERT_TRUE(ends.ok());
  const auto lock = ends->Lock(v1::Launcher());
  ASSERT_TRUE(lock.ok());
  const Retention none{absl::ZeroDuration(), 0, 0};
  EXPECT_THAT(*jobs_.PruneSome(none, now_), SizeIs(1));
  EXPECT_THAT(LeftOf(none), ElementsAre("days-2"));
}

TEST_F(PruneTest, SeveralAtOnceRemoveEachJobOnce) {
  EndedFor(1);
  for (int days = 2; days <= 40; ++days) EndedForUnsynced(days);
  EXPECT_EQ(Ids().size(), 40u);
  Accept(Spec("running"));
  for (const int days : {1, 2, 3}) {  // some that others have begun to remove
    const std::string logs = absl::StrCat(place_, "/jobs/.gone.", days, "/logs");
    fs::create_directories(logs);
    for (int i = 0; i < 200; ++i) WriteFile(absl::StrCat(logs, "/", i), "x");
  }
  std::atomic<size_t> gone = 0;
  std::vector<std::thread> launchers;
  for (int i = 0; i < 4; ++i) {
    launchers.emplace_back([&, i] {
      for (size_t jobs = 35; jobs > 0; jobs -= 5) {
        const Retention most{absl::InfiniteDuration(), jobs, UINT64_MAX};
        const auto pruned = i % 2 == 0 ? jobs_.Prune(most, now_) : jobs_.PruneSome(most, now_);
        EXPECT_TRUE(pruned.ok()) << pruned.status();
        if (pruned.ok()) gone += pruned->size();
      }
    });
  }
  for (std::thread& launcher : launchers) launcher.join();
  EXPECT_EQ(gone, 35u);
  EXPECT_THAT(LeftOf(Retention{absl::InfiniteDuration(), 5, UINT64_MAX}),
              ElementsAre("days-1", "days-2", "days-3", "days-4", "days-5", "running"));
}

TEST_F(PruneTest, WhatKilledProcessesHaveLeftGoes) {
  EndedFor(1);
  fs::create_directories(place_ + "/jobs/.new.x/logs");
  fs::create_directories(place_ + "/jobs/.gone.y.1/logs");
  EXPECT_THAT(LeftOf(Retention()), ElementsAre("days-1"));
}

TEST(StatePlace, IsTheUsersOwn) {
  char name[] = "/tmp/dtrain-home-XXXXXX";
  const std::string home = mkdtemp(name);
  setenv("HOME", home.c_str(), 1);
  unsetenv("XDG_STATE_HOME");
  EXPECT_EQ(*Jobs::UsualPlace(), home + "/.local/state/dtrain");
  setenv("XDG_STATE_HOME", home.c_str(), 1);
  EXPECT_EQ(*Jobs::UsualPlace(), home + "/dtrain");
  // One that does not exist yet is made.
  setenv("XDG_STATE_HOME", (home + "/new/state").c_str(), 1);
  EXPECT_EQ(*Jobs::UsualPlace(), home + "/new/state/dtrain");
  EXPECT_TRUE(Jobs(*Jobs::UsualPlace()).Prepare().ok());
  EXPECT_TRUE(fs::exists(home + "/new/state/dtrain/jobs"));
  // Relative ones do not count, nor those of others, as after sudo.
  setenv("XDG_STATE_HOME", "state", 1);
  EXPECT_EQ(*Jobs::UsualPlace(), home + "/.local/state/dtrain");
  if (geteuid() == 0) {
    ASSERT_EQ(chown(home.c_str(), kMallory, kMallory), 0);
    const auto place = Jobs::UsualPlace();
    EXPECT_TRUE(!place.ok() || *place != home + "/.local/state/dtrain");
  }
  fs::remove_all(home);
}

// Each may hang.
TEST(StatePlace, AsksNoFileSystemThatItNeedNot) {
  char name[] = "/tmp/dtrain-home-XXXXXX";
  const std::string home = mkdtemp(name);
  setenv("HOME", home.c_str(), 1);
  std::vector<std::string> asked;
  const auto usual = [&](bool may_ask) {
    asked.clear();
    return Jobs::UsualPlace([&](const std::string& place) {
      asked.push_back(place);
      return may_ask;
    });
  };
  setenv("XDG_STATE_HOME", home.c_str(), 1);
  EXPECT_EQ(*usual(true), home + "/dtrain");
  EXPECT_THAT(asked, ElementsAre(home + "/dtrain"));
  std::string theirs = "/";
  if (geteuid() == 0) {
    theirs = home + "/theirs";
    ASSERT_TRUE(fs::create_directory(theirs));
    ASSERT_EQ(chown(theirs.c_str(), kMallory, kMallory), 0);
  }
  setenv("XDG_STATE_HOME", theirs.c_str(), 1);
  EXPECT_EQ(*usual(true), home + "/.local/state/dtrain");
  EXPECT_THAT(asked, ElementsAre(theirs + "/dtrain", home + "/.local/state/dtrain"));
  EXPECT_TRUE(absl::IsUnavailable(usual(false).status()));
  EXPECT_THAT(asked, ElementsAre(theirs + "/dtrain"));
  fs::remove_all(home);
}

}  // namespace
}  // namespace dtrain::detached
