// SPDX-License-Identifier: Apache-2.0
#include "agent/containers/runtime.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/text.h"

namespace dtrain::containers {
namespace {

struct Candidate {
  Runtime runtime;
  const char* program;
};
constexpr Candidate kPodman = {Runtime::kPodman, "podman"};
constexpr Candidate kDocker = {Runtime::kDocker, "docker"};
constexpr Candidate kApptainer = {Runtime::kApptainer, "apptainer"};
constexpr Candidate kSingularity = {Runtime::kApptainer, "singularity"};  // its older name
constexpr Candidate kEnroot = {Runtime::kEnroot, "enroot"};

bool IsSif(const std::string& image) {
  return absl::EndsWith(image, ".sif") || absl::StartsWith(image, "docker://") ||
         absl::StartsWith(image, "oras://") || absl::StartsWith(image, "library://");
}

bool IsSquashed(const std::string& image) { return absl::EndsWith(image, ".sqsh"); }

std::vector<Candidate> CandidatesFor(const v1::Container& container) {
  const std::string& named = container.runtime();
  if (named == "podman") return {kPodman};
  if (named == "docker") return {kDocker};
  if (named == "apptainer") return {kApptainer, kSingularity};
  if (named == "enroot") return {kEnroot};
  if (IsSif(container.image())) return {kApptainer, kSingularity};
  if (IsSquashed(container.image())) return {kEnroot};
  return {kPodman, kDocker, kApptainer, kSingularity};
}

// The image in the runtime's own words; absent: it runs no such image.
std::optional<std::string> ImageFor(Runtime runtime, const std::string& image) {
  const bool is_file = absl::StartsWith(image, "/") || absl::StartsWith(image, ".");
  switch (runtime) {
    case Runtime::kPodman:
    case Runtime::kDocker:
      if (IsSif(image) || IsSquashed(image)) return std::nullopt;
      return image;
    case Runtime::kApptainer:
      if (IsSquashed(image)) return std::nullopt;
      return IsSif(image) || is_file ? image : absl::StrCat("docker://", image);
    case Runtime::kEnroot:
      // A squashed file, or the name of a container that was made of one.
      if (IsSif(image) || absl::StrContains(image, ':')) return std::nullopt;
      return image;
  }
  return std::nullopt;
}

std::string WhatItRuns(Runtime runtime) {
  switch (runtime) {
    case Runtime::kApptainer:
      return "it takes .sif files, docker://, oras:// and library://";
    case Runtime::kEnroot:
      return "it takes a .sqsh file (enroot import docker://IMAGE makes one) or the name of a "
             "container that enroot create has made";
    default:
      return "it takes images of a registry, like docker.io/library/debian:12";
  }
}

}  // namespace

absl::StatusOr<Chosen> Choose(const v1::Container& container, const FindExecutable& find) {
  std::vector<std::string> looked_for;
  for (const Candidate& candidate : CandidatesFor(container)) {
    looked_for.emplace_back(candidate.program);
    std::string program = find(candidate.program);
    if (program.empty()) continue;
    auto image = ImageFor(candidate.runtime, container.image());
    if (!image) {
      return absl::InvalidArgumentError(absl::StrCat(candidate.program, " does not run the image ",
                                                     Escape(container.image(), 200), ": ",
                                                     WhatItRuns(candidate.runtime)));
    }
    return Chosen{candidate.runtime, candidate.program, std::move(program), *std::move(image)};
  }
  std::string more;
  const bool any = container.runtime().empty() && looked_for.size() > 2;
  if (any && !find(kEnroot.program).empty()) {
    more = absl::StrCat("; it has enroot, which cannot run this image: ",
                        WhatItRuns(Runtime::kEnroot));
  }
  return absl::NotFoundError(absl::StrCat(
      "run the image ", Escape(container.image(), 200), ": this node has no ",
      absl::StrJoin(looked_for, ", no "), " on the PATH of its agent", more,
      any ? "; install one of them" : "; install it, or choose another with --container-runtime"));
}

}  // namespace dtrain::containers
