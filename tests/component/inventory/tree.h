// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "agent/inventory/roots.h"

namespace dtrain::inventory {

// A file tree that stands for the kernel's, gone with the object.
class Tree {
 public:
  Tree() {
    std::string pattern = ::testing::TempDir() + "dtrain-tree-XXXXXX";
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    top_ = pattern;
  }
  ~Tree() {
    std::error_code ignored;
    std::filesystem::remove_all(top_, ignored);
  }
  Tree(const Tree&) = delete;
  Tree& operator=(const Tree&) = delete;

  std::string path(const std::string& name) const { return top_ + "/" + name; }
  Roots roots() const { return {path("sys"), path("proc"), path("dev")}; }

  void Write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(path(name)).parent_path());
    std::ofstream file(path(name));
    file << text;
    EXPECT_TRUE(file.good()) << path(name);
  }

 private:
  std::string top_;
};

}  // namespace dtrain::inventory
