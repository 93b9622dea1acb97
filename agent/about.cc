// SPDX-License-Identifier: Apache-2.0
#include "agent/about.h"

#include <unistd.h>

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "agent/inventory/inventory.h"
#include "agent/resident.h"
#include "common/os/account.h"
#include "common/os/fd.h"

namespace dtrain::agent {
namespace {

// "MemAvailable:    1234 kB"
uint64_t MemoryAvailable() {
  auto text = os::ReadSmallFile("/proc/meminfo");
  if (!text.ok()) return 0;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    uint64_t kib = 0;
    if (!absl::ConsumePrefix(&line, "MemAvailable:") || !absl::ConsumeSuffix(&line, "kB")) continue;
    return absl::SimpleAtoi(absl::StripAsciiWhitespace(line), &kib) ? kib << 10 : 0;
  }
  return 0;
}

double Load() {
  auto text = os::ReadSmallFile("/proc/loadavg");
  double load = 0;
  if (text.ok()) (void)absl::SimpleAtod(text->substr(0, text->find(' ')), &load);
  return load;
}

}  // namespace

v1::NodeReport AboutNode() {
  // Neither changes, and both take a look into files.
  static const std::string build(absl::StripAsciiWhitespace(BuildId()));
  static const std::string account = [] {
    auto found = os::FindAccount(geteuid());
    return found.ok() ? found->name : std::to_string(geteuid());
  }();
  v1::NodeReport report;
  report.set_version(DTRAIN_VERSION);
  report.set_build(build);
  report.set_account(account);
  report.set_load(Load());
  report.set_memory_available_bytes(MemoryAvailable());
  return report;
}

auth::Identity OwnIdentity(const std::string& proof) {
  auth::Identity self;
  self.role = auth::Role::kAdmin;
  self.name = inventory::OwnUserName();
  self.account = auth::Account{self.name, getuid(), getgid()};
  self.proof = proof;
  return self;
}

}  // namespace dtrain::agent
