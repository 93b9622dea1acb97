// SPDX-License-Identifier: Apache-2.0
#include "agent/containers/look.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "agent/containers/environment.h"
#include "common/os/fd.h"
#include "common/os/find_program.h"

namespace dtrain::containers {

FindExecutable FindOnPathOf(const std::vector<std::string>& environment) {
  std::string path;
  for (const std::string& entry : ClientEnvironment(environment)) {
    absl::string_view value = entry;
    if (absl::ConsumePrefix(&value, "PATH=")) path = std::string(value);
  }
  return [path](const std::string& name) {
    os::SpawnError error;
    auto found = os::FindProgram(name, path, "/", &error);
    return found.ok() ? *std::move(found) : std::string();
  };
}

bool PodmanHasInit() {
  constexpr const char* kPlaces[] = {"/usr/libexec/podman", "/usr/local/libexec/podman",
                                     "/usr/local/lib/podman", "/usr/lib/podman"};
  return std::any_of(std::begin(kPlaces), std::end(kPlaces), [](const char* place) {
    return access(absl::StrCat(place, "/catatonit").c_str(), X_OK) == 0;
  });
}

std::vector<std::string> NetworkDevices() {
  const std::string folder = "/dev/infiniband";
  if (access(folder.c_str(), X_OK) == 0) return {folder};
  return {};
}

uint64_t MostProcesses() {
  uint64_t most = std::numeric_limits<uint64_t>::max();
  auto text = os::ReadSmallFile("/proc/sys/kernel/pid_max");
  if (text.ok()) (void)absl::SimpleAtoi(absl::StripAsciiWhitespace(*text), &most);
  return most;
}

}  // namespace dtrain::containers
