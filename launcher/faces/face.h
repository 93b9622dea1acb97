// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/cli/options.h"
#include "launcher/cli/page.h"
#include "launcher/faces/face_flags.h"
#include "launcher/faces/translation.h"

// The command lines of other launchers. Each is a table of flags and a translation into the words
// of dtrain launch; what that cannot say stands in Translation. Pure.
namespace dtrain::faces {

struct Face {
  absl::string_view name;   // "torchrun": `dtrain torchrun`, or a link of this name to dtrain
  absl::string_view usage;  // behind "dtrain "
  absl::string_view text;   // what is different here
  const std::vector<FaceFlag>& (*flags)();
  Spelling spelling;
  absl::string_view verb = "";  // "launch" of `accelerate launch`: a word before the flags
  // `args` behind the name. Errors are InvalidArgument.
  absl::StatusOr<Translation> (*translate)(const std::vector<std::string>& args,
                                           const cli::Surroundings& surroundings);
};

extern const Face kAccelerate;
extern const Face kHorovodrun;
extern const Face kTorchrun;
extern const Face kMpirun, kMpiexec;
extern const Face kDeepspeed;
extern const Face kFabric;

// All of them, as the help lists them.
const std::vector<const Face*>& Faces();

// The face of this name; null: there is none.
const Face* Find(absl::string_view name);

// True when `args` ask for the face's help before its command begins.
bool WantsHelp(const Face& face, const std::vector<std::string>& args);

cli::Page PageOf(const Face& face);

}  // namespace dtrain::faces
