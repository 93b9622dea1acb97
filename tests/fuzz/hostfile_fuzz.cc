// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "absl/strings/str_cat.h"
#include "launcher/hosts/hostfile.h"
#include "tests/fuzz/expect.h"

namespace {

using dtrain::hosts::HostEntry;
using dtrain::hosts::HostList;

std::string Write(const HostList& list) {
  std::string text;
  for (const HostEntry& entry : list.entries) {
    absl::StrAppend(&text, entry.user, entry.user.empty() ? "" : "@", entry.host);
    if (entry.port != 0) absl::StrAppend(&text, " port=", entry.port);
    if (entry.slots) absl::StrAppend(&text, " slots=", *entry.slots);
    if (entry.max_slots) absl::StrAppend(&text, " max_slots=", *entry.max_slots);
    if (entry.gpus) absl::StrAppend(&text, " gpus=", *entry.gpus);
    absl::StrAppend(&text, "\n");
  }
  return text;
}

void ExpectSound(const HostList& list) {
  DTRAIN_CHECK(!list.entries.empty() && list.entries.size() <= dtrain::hosts::kMaxHosts);
  for (const HostEntry& entry : list.entries) {
    DTRAIN_CHECK(dtrain::hosts::CheckHostName(entry.host).ok());
    DTRAIN_CHECK(entry.user.empty() || entry.user.front() != '-');
    DTRAIN_CHECK(!entry.slots || (*entry.slots > 0 && *entry.slots <= dtrain::hosts::kMaxSlots));
    DTRAIN_CHECK(!entry.max_slots || (entry.slots && *entry.max_slots >= *entry.slots));
    DTRAIN_CHECK(entry.line > 0 && entry.column > 0);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto list = dtrain::hosts::ParseHostfile(dtrain::fuzz::Text(data, size), "F");
  if (!list.ok()) {
    dtrain::fuzz::ExpectPrintable(list.status());
    return 0;
  }
  ExpectSound(*list);
  // What was understood, written down, is understood the same way.
  auto again = dtrain::hosts::ParseHostfile(Write(*list), "F");
  DTRAIN_CHECK(again.ok() && again->warnings.empty());
  DTRAIN_CHECK(Write(*again) == Write(*list));
  return 0;
}
