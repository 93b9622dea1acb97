// SPDX-License-Identifier: Apache-2.0
// The list of files that a shepherd is told to stage. What is taken is written in one way only, and
// stays within its tree.
#include "common/manifest/manifest.h"
#include "tests/fuzz/expect.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text = dtrain::fuzz::Text(data, size);
  auto files = dtrain::manifest::Parse(text);
  if (!files.ok()) {
    dtrain::fuzz::ExpectPrintable(files.status());
    return 0;
  }
  for (const auto& file : *files) {
    DTRAIN_CHECK(file.path.front() != '/' && file.path != "..");
    DTRAIN_CHECK(file.path.find("/../") == std::string::npos);
  }
  const auto again = dtrain::manifest::Format(*files);
  DTRAIN_CHECK(again.ok() && *again == text);
  return 0;
}
