// SPDX-License-Identifier: Apache-2.0
// What the fuzzers start from, and what they once found, is replayed in every build.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#define FUZZ_TARGET(name) extern "C" int Fuzz_##name(const uint8_t* data, size_t size);
#include "fuzz_targets.inc"
#undef FUZZ_TARGET

#include "tests/support/paths.h"

namespace {

namespace fs = std::filesystem;

void Replay(const std::string& name, int (*target)(const uint8_t*, size_t)) {
  size_t seeds = 0;
  for (const auto& file : fs::directory_iterator(dtrain::SourcePath("tests/fuzz/seeds/" + name))) {
    SCOPED_TRACE(file.path().filename().string());
    std::ifstream in(file.path(), std::ios::binary);
    // A vector of its own size: reading one byte too many is seen by AddressSanitizer.
    std::vector<char> bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    bytes.shrink_to_fit();
    EXPECT_EQ(target(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()), 0);
    ++seeds;
  }
  EXPECT_GT(seeds, 0u) << "no seeds for " << name;
  EXPECT_EQ(target(nullptr, 0), 0);
}

#define FUZZ_TARGET(name) \
  TEST(FuzzSeeds, name) { Replay(#name, Fuzz_##name); }
#include "fuzz_targets.inc"
#undef FUZZ_TARGET

}  // namespace
