// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "agent/containers/runtime.h"
#include "dtrain/v1/job.pb.h"

namespace dtrain::containers {

// --container-mount SRC[:DST[:ro]].
struct Mount {
  std::string source;
  std::string target;
  bool read_only = false;
};
Mount ParseMount(absl::string_view text);

// What a worker's container needs of its node.
struct Needs {
  std::string name;               // of the container
  std::vector<std::string> argv;  // of the program
  std::vector<std::string> variables;
  std::string environment_file;   // empty: none
  int descriptors = 0;            // after the standard three, that go in by the same numbers
  std::string working_directory;  // absolute; empty: the image's
  std::vector<Mount> mounts;
  std::vector<std::string> options;  // the user's
  std::vector<std::string> gpu_uuids;
  std::vector<std::string> devices;  // files and folders in /dev
  bool has_init = false;             // podman finds an init to start first
  rlimit open_files{}, processes{}, core{};
  // For a daemon, which knows nothing of whom it works for.
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;
  std::string cpulist;
};

// The words that run one worker. PURE.
std::vector<std::string> RunCommand(const Chosen& chosen, const Needs& run);

// Whether the node has the image: exit code 0. Empty: that is not to be asked.
std::vector<std::string> LookCommand(const Chosen& chosen);
// Fetches it. Empty: it is a file, or the runtime does so itself.
std::vector<std::string> FetchCommand(const Chosen& chosen);

// The name of a rank's container, on whichever node. Jobs of several users may have one id, and a
// daemon has the containers of all.
std::string ContainerName(uid_t owner, const v1::JobPart& part, uint32_t rank);
// Ends these containers, if they are there, and removes their records. Empty: there are none.
std::vector<std::string> RemoveCommand(const Chosen& chosen, const std::vector<std::string>& names);

}  // namespace dtrain::containers
