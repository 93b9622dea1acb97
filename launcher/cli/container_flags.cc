// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/container_flags.h"

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/text.h"
#include "launcher/cli/values.h"

namespace dtrain::cli {
namespace {

constexpr Choice<View> kRuntimes[] = {{"auto", "auto"},
                                      {"podman", "podman"},
                                      {"docker", "docker"},
                                      {"apptainer", "apptainer"},
                                      {"enroot", "enroot"}};

bool HasOddBytes(View value) {
  return std::any_of(value.begin(), value.end(), [](unsigned char c) {
    return absl::ascii_isspace(c) || absl::ascii_iscntrl(c);
  });
}

absl::Status SetImage(View value, RawLaunch& out) {
  // It stands among the words of a command line.
  if (value.empty() || value[0] == '-' || HasOddBytes(value)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", Escape(value, 60), "\" is not the name of an image"));
  }
  out.container.set_image(std::string(value));
  return absl::OkStatus();
}

absl::Status SetRuntime(View value, RawLaunch& out) {
  View runtime;
  absl::Status chosen = Choose(value, kRuntimes, runtime);
  if (chosen.ok()) out.container.set_runtime(std::string(runtime));
  return chosen;
}

absl::Status SetMount(View value, RawLaunch& out) {
  const std::vector<View> parts = absl::StrSplit(value, ':');
  const auto wrong = [value](View why) {
    return absl::InvalidArgumentError(absl::StrCat("\"", Escape(value, 200), "\" ", why));
  };
  if (parts.size() > 3) return wrong("is not SRC[:DST[:ro]]");
  if (value.find(',') != View::npos || HasOddBytes(value)) {
    return wrong("has a comma, a space or a control character, which not all runtimes can mount");
  }
  for (size_t i = 0; i < std::min<size_t>(parts.size(), 2); ++i) {
    if (absl::StartsWith(parts[i], "/")) continue;
    return wrong("is not SRC[:DST[:ro]] with full paths: they are those of each node");
  }
  if (parts.size() == 3 && parts[2] != "ro" && parts[2] != "rw") {
    return wrong("may end in :ro or :rw, in nothing else");
  }
  out.container.add_mounts(std::string(value));
  return absl::OkStatus();
}

absl::Status SetOption(View value, RawLaunch& out) {
  std::string option;
  absl::Status set = Set(value, option);
  if (set.ok()) out.container.add_options(std::move(option));
  return set;
}

}  // namespace

std::vector<Flag> ContainerFlags() {
  constexpr View kGroup = "Containers";
  return {
      {"--container", kGroup, "IMAGE",
       "run each worker in a container of IMAGE, with the node's\n"
       "podman, docker, apptainer or enroot",
       SetImage},
      {"--container-runtime", kGroup, "WHAT", "auto (default), podman, docker, apptainer or enroot",
       SetRuntime, Names(kRuntimes)},
      {"--container-mount",
       kGroup,
       "SRC[:DST[:ro]]",
       "also mount this path of the node; the working directory is\n"
       "mounted anyway; may be repeated",
       SetMount,
       {},
       true},
      {"--container-option",
       kGroup,
       "ARG",
       "one word for the runtime's own command line, before the image;\n"
       "may be repeated (--container-option=--shm-size=1g)",
       SetOption,
       {},
       true},
  };
}

absl::Status CheckHasImage(const v1::Container& container) {
  if (!container.image().empty()) return absl::OkStatus();
  const View which = container.mounts_size() > 0    ? "--container-mount"
                     : container.options_size() > 0 ? "--container-option"
                     : !container.runtime().empty() ? "--container-runtime"
                                                    : "";
  if (which.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(which, " has no meaning without --container IMAGE"));
}

}  // namespace dtrain::cli
