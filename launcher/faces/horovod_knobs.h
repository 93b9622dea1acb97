// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "launcher/faces/face_flags.h"
#include "launcher/faces/yaml.h"

// What horovodrun tells Horovod: by flag, by configuration file, in the end by variable
// (horovod/runner/common/util/config_parser.py).
namespace dtrain::faces {

struct HorovodKnob {
  enum class Kind { kWhole, kNumber, kText, kSwitch };
  absl::string_view flag;  // of a switch, the one that sets the variable to 1
  absl::string_view off;   // of a switch, the one that sets it to 0
  absl::string_view values;
  Kind kind;
  absl::string_view variable;
  absl::string_view section, key;  // in the file
  bool inverse = false;            // the file says the contrary of the variable
};

const std::vector<HorovodKnob>& HorovodKnobs();

// The flags of the knobs, for the face's table.
std::vector<FaceFlag> HorovodKnobFlags();

using KnobValues = std::map<const HorovodKnob*, Value>;

// From the command line; the last mention counts.
absl::Status TakeKnobs(const FaceWords& words, KnobValues& values);

// From the file, which `name` is; what `values` has already stays. `unknown` gets the keys that
// Horovod has no use for.
absl::Status TakeKnobs(const Value& file, absl::string_view name, KnobValues& values,
                       std::vector<std::string>& unknown);

// NAME, VALUE in the order of the table.
std::vector<std::pair<std::string, std::string>> HorovodVariables(const KnobValues& values);

}  // namespace dtrain::faces
