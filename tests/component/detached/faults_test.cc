// SPDX-License-Identifier: Apache-2.0
// H6: a disk whose calls fail. tests/cluster/faulty_disk.py is that disk.
#include <fcntl.h>
#include <sys/prctl.h>

#include <vector>

#include "common/os/fd.h"
#include "launcher/detached/jobs.h"
#include "launcher/detached/log_reader.h"
#include "launcher/detached/log_store.h"
#include "tests/component/detached/disk_fixture.h"
#include "tests/support/paths.h"

namespace dtrain::detached {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class FaultsTest : public JournalDiskTest {
 protected:
  void SetUp() override {
    disk_ = dir_ + "/disk";
    fs::create_directory(disk_);
    fs::create_directory(dir_ + "/real");
    fs::permissions(disk_, fs::perms::owner_all);
    auto told = os::Pipe();
    ASSERT_TRUE(told.ok());
    if (!MayMount()) GTEST_SKIP() << "needs root, to mount a disk that fails";
    const std::string script = SourcePath("tests/cluster/faulty_disk.py");
    std::vector<std::string> words = {
        "/usr/bin/python3", "-B", script, dir_ + "/real", disk_, dir_ + "/switch", dir_ + "/hits"};
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    server_ = fork();
    if (server_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      dup2(told->second.get(), STDOUT_FILENO);
      execv(argv[0], argv.data());
      _exit(127);
    }
    told->second.Reset();
    char first = 0;
    if (read(told->first.get(), &first, 1) != 1) {
      const std::string module = "/usr/lib/python3/dist-packages/fusepy.py";
      ASSERT_FALSE(fs::exists("/dev/fuse") && fs::exists(module)) << script << " does not serve";
      GTEST_SKIP() << "needs /dev/fuse and python3-fusepy, to mount a disk that fails";
    }
    out_ = std::move(told->first);
  }
  ~FaultsTest() override {
    Heal();
    if (server_ > 0) {
      kill(server_, SIGKILL);
      waitpid(server_, nullptr, 0);
    }
    umount2(disk_.c_str(), MNT_DETACH);
  }
  // An error and the calls that get it, from the first on.
  void Fail(const std::string& how) {
    WriteFile(dir_ + "/switch.new", absl::StrCat(++told_, " 0 ", how));
    fs::rename(dir_ + "/switch.new", dir_ + "/switch");
  }
  void Heal() {
    std::error_code ignored;
    fs::remove(dir_ + "/switch", ignored);
  }

  std::string disk_;

 private:
  pid_t server_ = -1;
  int told_ = 0;
  os::UniqueFd out_;
};

TEST_F(FaultsTest, AJournalHasEachRecordOnceAfterErrors) {
  const std::string path = Create(disk_);
  auto journal = Open(path, 2000);
  uint64_t generation = 0;
  // A failed sync and a failed write; EDQUOT of what grows, and what a compaction does.
  for (const char* how : {"EIO fsync", "EIO write", "EIO write fsync", "EDQUOT write truncate",
                          "EIO create", "EIO rename", "EIO create rename fsync"}) {
    SCOPED_TRACE(how);
    const uint64_t before = generation;
    troubles_.clear();
    Fail(how);
    uint64_t done = before;
    // Enough for a compaction.
    for (int i = 0; i < 12; ++i) {
      const uint64_t mine = ++generation;
      ASSERT_TRUE(journal
                      ->Append(Generation(mine, std::string(200, 'h')),
                               [&done, mine] { EXPECT_EQ(mine, ++done); })
                      .ok());
      loop_.context().run_for(std::chrono::milliseconds(5));
    }
    loop_.context().run_for(std::chrono::milliseconds(50));
    Heal();
    RunUntil([&] { return done == generation; });
    EXPECT_EQ(GenerationIn(path), generation);
    EXPECT_EQ(Open(path)->state().SerializeAsString(), journal->state().SerializeAsString());
    if (!troubles_.empty()) {
      EXPECT_TRUE(troubles_.back().ok());
    }
  }
}

TEST_F(FaultsTest, NothingIsDoneWhileNothingCanBeSynced) {
  const std::string path = Create(disk_);
  auto journal = Open(path);
  Fail("EIO fsync");
  bool done = false;
  ASSERT_TRUE(journal->Append(Generation(1), [&] { done = true; }).ok());
  RunUntil([&] { return !troubles_.empty(); });
  EXPECT_THAT(std::string(troubles_[0].message()),
              HasSubstr("sync " + path + ": Input/output error"));
  loop_.context().run_for(kJournalRetry + std::chrono::milliseconds(200));
  EXPECT_FALSE(done);
  EXPECT_EQ(troubles_.size(), 1);
  // And a successor does not take what is perhaps not there.
  EXPECT_FALSE(JournalFile::Open(path).ok());
  Heal();
  RunUntil([&] { return done; });
}

TEST_F(FaultsTest, OutputIsThereOnceAfterErrors) {
  const std::string path = Create(disk_);
  auto journal = Open(path);
  Write(*journal, Generation(1));
  Write(*journal, Begins());
  std::vector<absl::Status> troubles;
  const std::string logs = disk_ + "/logs";
  LogStore store(
      loop_, *journal, LogPlace{logs},
      {nullptr, [&](absl::Status status) { troubles.push_back(std::move(status)); }, nullptr});
  ASSERT_TRUE(store.Open().ok());
  const LogStream stream{Rank(0), false};
  std::string all;
  const auto write = [&] {
    const std::string piece(100, static_cast<char>('a' + all.size() / 100 % 26));
    store.Write(stream, all.size(), piece);
    all += piece;
    loop_.context().run_for(std::chrono::milliseconds(5));
  };
  write();
  for (const char* how :
       {"EIO fsync", "EIO write", "EIO create write", "EIO write truncate fsync"}) {
    SCOPED_TRACE(how);
    troubles.clear();
    write();
    Fail(how);
    for (int i = 0; i < 5; ++i) write();
    bool done = false;
    store.Flush([&] { done = true; });
    RunUntil([&] { return !troubles.empty(); });
    EXPECT_FALSE(done);
    Heal();
    write();
    RunUntil([&] { return done; });
    EXPECT_TRUE(troubles.back().ok());
    std::string read;
    LogReader reader(logs, stream);
    for (std::string piece = "x"; !piece.empty(); read += piece) {
      auto next = reader.Next(1000);
      ASSERT_TRUE(next.ok()) << next.status();
      piece = *std::move(next);
    }
    ASSERT_EQ(journal->state().logs_safe_size(), 1);
    const uint64_t safe = journal->state().logs_safe(0).offset();
    EXPECT_EQ(read.substr(0, safe), all.substr(0, safe));
  }
}

// F3: whichever call fails, there is a whole job or none.
TEST_F(FaultsTest, AJobIsAcceptedOrNotThere) {
  const Jobs jobs(disk_ + "/dtrain");
  v1::Spec spec;
  spec.set_job_id("before");
  ASSERT_TRUE(jobs.Accept(spec).ok());
  spec.set_job_id("a");
  spec.set_key("the-key");
  for (const char* how : {"EIO create", "EIO mkdir", "EIO write", "EIO fsync", "EIO rename",
                          "EDQUOT create mkdir rename write truncate", "EIO write fsync read"}) {
    SCOPED_TRACE(how);
    Fail(how);
    const auto accepted = jobs.Accept(spec);
    EXPECT_FALSE(accepted.ok());
    EXPECT_NE(accepted.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(accepted.status().code(), absl::StatusCode::kAlreadyExists);
    Heal();
    EXPECT_FALSE(fs::exists(disk_ + "/dtrain/jobs/a"));
    EXPECT_EQ(jobs.List()->size(), 1);
  }
  const auto accepted = jobs.Accept(spec);
  ASSERT_TRUE(accepted.ok()) << accepted.status();
  EXPECT_FALSE(accepted->was_there);
  EXPECT_TRUE(accepted->folder.ReadJournal().ok());
}

}  // namespace
}  // namespace dtrain::detached
