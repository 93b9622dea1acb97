// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtrain/v1/job.pb.h"

// Workers in containers: which program of the node runs them, and the command lines of it. PURE.
namespace dtrain::containers {

enum class Runtime { kPodman, kDocker, kApptainer, kEnroot };

// What runs an image on this node.
struct Chosen {
  Runtime runtime = Runtime::kPodman;
  std::string name;     // "podman"; "singularity" may stand in for "apptainer"
  std::string program;  // its file
  std::string image;    // as it wants to be told
};

// The file of an executable; empty when the node has none of that name.
using FindExecutable = std::function<std::string(const std::string& name)>;

// The runtime that `container` names, or the first on the node that runs such an image.
// NOT_FOUND: the node has none; INVALID_ARGUMENT: the one that is named does not run such images.
absl::StatusOr<Chosen> Choose(const v1::Container& container, const FindExecutable& find);

// What has to be there for a container of that runtime: inherited descriptors reach the program
// (docker's daemon starts it, which has none of ours).
inline bool CarriesDescriptors(Runtime runtime) { return runtime != Runtime::kDocker; }
// Its containers have a name and a record, which must go when their client was killed.
inline bool KeepsRecords(Runtime runtime) {
  return runtime == Runtime::kPodman || runtime == Runtime::kDocker;
}

}  // namespace dtrain::containers
