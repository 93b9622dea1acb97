// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/loop/loop.h"
#include "dtrain/v1/journal.pb.h"
#include "launcher/detached/journal.h"
#include "launcher/detached/journal_file.h"

namespace dtrain::detached {

// A folder of its own, and a loop that runs until something has happened.
class DiskTest : public testing::Test {
 protected:
  DiskTest() {
    signal(SIGXFSZ, SIG_IGN);
    char path[] = "/tmp/dtrain-detached-XXXXXX";
    EXPECT_NE(mkdtemp(path), nullptr);
    dir_ = path;
  }
  ~DiskTest() override {
    umount2((dir_ + "/small").c_str(), MNT_DETACH);
    std::filesystem::remove_all(dir_);
  }

  // From now on what is mounted goes with this process, however it ends. False: we may not mount.
  static bool MayMount() {
    static const bool may =
        unshare(CLONE_NEWNS) == 0 && mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
    return may;
  }
  // A file system of so many bytes, if we may mount one; its folder.
  std::string SmallDisk(size_t bytes) {
    const std::string place = dir_ + "/small";
    std::filesystem::create_directory(place);
    const std::string options = absl::StrCat("mode=0700,size=", bytes);
    const bool mounted =
        MayMount() && mount("small", place.c_str(), "tmpfs", 0, options.c_str()) == 0;
    return mounted ? place : "";
  }
  // Takes what is left of it.
  static void Fill(const std::string& place) {
    std::ofstream file(place + "/filler", std::ios::binary);
    const std::string block(4096, 'x');
    while (file.write(block.data(), static_cast<std::streamsize>(block.size())).flush()) {
    }
  }
  static void MakeRoom(const std::string& place) { std::filesystem::remove(place + "/filler"); }

  void RunUntil(const std::function<bool()>& done) {
    loop::Timer deadline(loop_);
    bool late = false;
    deadline.After(std::chrono::seconds(20), [&] { late = true; });
    while (!done() && !late) loop_.context().run_one_for(std::chrono::milliseconds(10));
    ASSERT_FALSE(late) << "deadline";
  }

  static std::string ReadFile(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
  }
  static void WriteFile(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
  }
  static void Damage(const std::string& path, size_t at) {
    std::string bytes = ReadFile(path);
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
    WriteFile(path, bytes);
  }

  loop::Loop loop_;
  std::string dir_;
};

// With a journal in it.
class JournalDiskTest : public DiskTest {
 protected:
  static std::string Create(const std::string& folder) {
    const std::string path = folder + "/journal";
    const absl::Status made = JournalFile::Create(path, "job-1", "1.0", v1::Accepted());
    EXPECT_TRUE(made.ok()) << made;
    return path;
  }
  std::unique_ptr<Journal> Open(const std::string& path, uint64_t compact_above = kCompactAbove) {
    auto opened = JournalFile::Open(path);
    EXPECT_TRUE(opened.ok()) << opened.status();
    if (!opened.ok()) return nullptr;
    return std::make_unique<Journal>(
        loop_, *std::move(opened), "1.0",
        [this](absl::Status status) { troubles_.push_back(std::move(status)); }, compact_above);
  }
  static v1::JournalRecord Generation(uint64_t generation, std::string host = "") {
    v1::JournalRecord record;
    record.mutable_generation_taken()->set_generation(generation);
    record.mutable_generation_taken()->set_host(std::move(host));
    return record;
  }
  static v1::JournalRecord Begins(uint32_t world_size = 4) {
    v1::JournalRecord record;
    record.mutable_attempt_begins()->set_generation(1);
    record.mutable_attempt_begins()->set_world_size(world_size);
    record.mutable_attempt_begins()->add_hosts("a");
    return record;
  }
  // Appended and synced.
  void Write(Journal& journal, v1::JournalRecord record) {
    bool done = false;
    const absl::Status taken = journal.Append(std::move(record), [&] { done = true; });
    ASSERT_TRUE(taken.ok()) << taken;
    RunUntil([&] { return done; });
  }
  static uint64_t GenerationIn(const std::string& path) {
    const auto read = JournalFile::Read(path);
    EXPECT_TRUE(read.ok()) << read.status();
    return read.ok() ? read->state.launcher().generation() : 0;
  }

  std::vector<absl::Status> troubles_;
};

}  // namespace dtrain::detached
