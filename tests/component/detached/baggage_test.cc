// SPDX-License-Identifier: Apache-2.0
// The folder of a job on its way from one machine to another, and what is left of it.
#include "launcher/detached/baggage.h"

#include <filesystem>
#include <map>

#include "common/os/fd.h"
#include "launcher/detached/jobs.h"
#include "launcher/detached/ourselves.h"
#include "tests/component/detached/disk_fixture.h"

namespace dtrain::detached {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class BaggageTest : public DiskTest {
 protected:
  BaggageTest() : here_(dir_ + "/here/dtrain"), there_(dir_ + "/there/dtrain") {
    spec_.set_job_id("dtrain-1");
    spec_.set_name("night");
    spec_.set_key("k");
    spec_.add_argv("launch");
    auto accepted = here_.Accept(spec_);
    EXPECT_TRUE(accepted.ok()) << accepted.status();
    job_.emplace(accepted->folder);
    Write("logs/0/rank-00000.out.0", "begin\n");
    Write("logs/1/rank-00000.out.0", std::string(600'000, 'x'));
    Write("logs/1/rank-00000.out.600000", "end");
    Write("launcher.log", "");
  }
  void Write(const std::string& name, const std::string& bytes) {
    const fs::path path = fs::path(job_->path()) / name;
    fs::create_directories(path.parent_path());
    ASSERT_TRUE(os::ReplaceFile(path.string(), bytes).ok());
  }
  IncomingJob Begin() {
    EXPECT_TRUE(there_.Prepare().ok());
    auto incoming = IncomingJob::Begin(there_.place(), "dtrain-1");
    EXPECT_TRUE(incoming.ok()) << incoming.status();
    return *std::move(incoming);
  }
  // All of it, in pieces.
  void Copy(IncomingJob& incoming) {
    const auto files = ListBaggage(*job_);
    ASSERT_TRUE(files.ok());
    for (const Baggage& file : *files) {
      uint64_t at = 0;
      do {
        const auto bytes = ReadBaggage(*job_, file.name, at, 100'000);
        ASSERT_TRUE(bytes.ok());
        ASSERT_TRUE(incoming.Write(file.name, at, *bytes).ok());
        at += bytes->size();
      } while (at < file.size);
    }
  }
  static std::map<std::string, std::string> Files(const std::string& folder) {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (entry.is_regular_file()) {
        files[entry.path().lexically_relative(folder)] =
            os::ReadSmallFile(entry.path().string()).value_or("?");
      }
    }
    return files;
  }

  Jobs here_, there_;
  v1::Spec spec_;
  std::optional<JobFolder> job_;
};

TEST_F(BaggageTest, ArrivesWhole) {
  {
    IncomingJob incoming = Begin();
    Copy(incoming);
    EXPECT_FALSE(there_.Find("dtrain-1").ok());
    const auto accepted =
        there_.Accept(spec_, [&](const JobFolder& draft) { return incoming.MoveInto(draft); });
    ASSERT_TRUE(accepted.ok()) << accepted.status();
    EXPECT_EQ(Files(accepted->folder.path()), Files(job_->path()));
    EXPECT_TRUE(accepted->folder.ReadJournal().ok());
  }
  EXPECT_TRUE(fs::is_empty(there_.place() + "/incoming"));
}

TEST_F(BaggageTest, GrowsWhileItTravels) {
  IncomingJob incoming = Begin();
  Copy(incoming);
  EXPECT_TRUE(incoming.Write("logs/1/rank-00000.out.600000", 3, "less").ok());
  // A journal may have been written anew.
  EXPECT_TRUE(incoming.Write("journal", 0, "other").ok());
  EXPECT_TRUE(absl::IsInvalidArgument(incoming.Write("logs/0/rank-00000.out.0", 7, "gap")));
  EXPECT_TRUE(absl::IsInvalidArgument(incoming.Write("logs/0/rank-00000.out.0", 5, "twice")));
  const std::string folder = there_.place() + "/incoming/dtrain-1";
  EXPECT_EQ(*os::ReadSmallFile(folder + "/journal"), "other");
  EXPECT_EQ(*os::ReadSmallFile(folder + "/logs/1/rank-00000.out.600000"), "endless");
}

TEST_F(BaggageTest, OnlyFilesOfAJobAreTaken) {
  IncomingJob incoming = Begin();
  for (const std::string name :
       {"", "spec", "lock", "minder", "summary.json", "../journal", "/etc/passwd", "logs/../../x",
        "logs/0/../x", "logs/0/rank-00000.out", "logs/0/rank-.out.0", "logs/0/rank-1.log.0",
        "logs/x/rank-00000.out.0", "logs/0/a/rank-00000.out.0", "logs//rank-00000.out.0"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(incoming.Write(name, 0, "x"))) << name;
  }
  EXPECT_EQ(Files(there_.place() + "/incoming/dtrain-1").size(), 1U);  // its lock
}

TEST_F(BaggageTest, OneReceivesItAtATime) {
  // Of one that was killed.
  ASSERT_TRUE(there_.Prepare().ok());
  fs::create_directories(there_.place() + "/incoming/dtrain-7/logs/0");
  fs::permissions(there_.place() + "/incoming", fs::perms::owner_all);
  std::optional<IncomingJob> first(Begin());
  EXPECT_FALSE(fs::exists(there_.place() + "/incoming/dtrain-7"));
  EXPECT_TRUE(absl::IsUnavailable(IncomingJob::Begin(there_.place(), "dtrain-1").status()));
  first.reset();
  EXPECT_TRUE(IncomingJob::Begin(there_.place(), "dtrain-1").ok());
}

TEST_F(BaggageTest, WhatMovedIsKnownByNameAndKey) {
  auto lock = job_->Lock(Ourselves());
  ASSERT_TRUE(lock.ok());
  ASSERT_TRUE(here_.MoveTo("login2", *job_, *std::move(lock)).ok());
  EXPECT_FALSE(fs::exists(job_->path()));
  for (const char* name : {"dtrain-1", "night"}) {
    const auto found = here_.Find(name);
    ASSERT_TRUE(absl::IsNotFound(found.status())) << found.status();
    EXPECT_THAT(std::string(found.status().message()), HasSubstr("moved to login2 on "));
  }
  // The same launch again, by its key, and another.
  v1::Spec again = spec_;
  again.set_job_id("dtrain-3");
  const auto same = here_.Accept(again);
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_EQ(same->folder.id(), "dtrain-1");
  EXPECT_EQ(same->moved_to, "login2");
  again.add_argv("other");
  const auto twice = here_.Accept(again);
  ASSERT_TRUE(absl::IsAlreadyExists(twice.status())) << twice.status();
  EXPECT_THAT(std::string(twice.status().message()), HasSubstr("moved to login2"));
  EXPECT_TRUE(absl::IsAlreadyExists(here_.CheckNew(again)));
  // It comes back.
  EXPECT_TRUE(here_.CheckNew(spec_).ok());
  ASSERT_TRUE(here_.Accept(spec_).ok());
  EXPECT_TRUE(here_.Find("night").ok());
  EXPECT_TRUE(fs::is_empty(here_.place() + "/moved"));
}

TEST_F(BaggageTest, WhatIsThereIsNotNew) {
  EXPECT_TRUE(there_.CheckNew(spec_).ok());  // nothing was ever launched there
  EXPECT_FALSE(fs::exists(there_.place()));
  EXPECT_TRUE(absl::IsAlreadyExists(here_.CheckNew(spec_)));
  v1::Spec other = spec_;
  other.set_job_id("dtrain-2");
  other.clear_key();
  EXPECT_TRUE(absl::IsAlreadyExists(here_.CheckNew(other)));  // the name
  other.set_name("day");
  EXPECT_TRUE(here_.CheckNew(other).ok());
  other.set_job_id("../x");
  EXPECT_TRUE(absl::IsInvalidArgument(here_.CheckNew(other)));
}

}  // namespace
}  // namespace dtrain::detached
