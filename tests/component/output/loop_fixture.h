// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>

#include "common/loop/loop.h"
#include "common/os/fd.h"

namespace dtrain::output {

// A loop that a test runs until something has happened, and a directory of its own.
class LoopTest : public testing::Test {
 protected:
  LoopTest() {
    char path[] = "/tmp/dtrain-output-XXXXXX";
    EXPECT_NE(mkdtemp(path), nullptr);
    dir_ = path;
  }
  ~LoopTest() override { std::filesystem::remove_all(dir_); }

  // Until `done` is true; it is asked after every event, and often.
  void RunUntil(const std::function<bool()>& done) {
    loop::Timer deadline(loop_);
    bool late = false;
    deadline.After(std::chrono::seconds(20), [&] { late = true; });
    while (!done() && !late) loop_.context().run_one_for(std::chrono::milliseconds(10));
    ASSERT_FALSE(late) << "deadline";
  }
  // What else is ready now.
  void Settle() { loop_.context().poll(); }

  static std::string ReadFile(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
  }
  os::UniqueFd Create(const std::string& name) {
    return os::UniqueFd(
        open((dir_ + "/" + name).c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  }

  loop::Loop loop_;
  std::string dir_;
};

}  // namespace dtrain::output
