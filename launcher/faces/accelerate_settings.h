// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/faces/face_flags.h"
#include "launcher/faces/yaml.h"

// What `accelerate launch` tells the script through variables: the values of its flags and of its
// configuration file.
namespace dtrain::faces {

struct AccelerateSetting {
  enum class Part { kNone, kDynamo, kFsdp, kDeepSpeed, kMegatron, kFp8, kParallelism };
  enum class Kind {
    kText,
    kWhole,
    kNumber,
    kSwitch,
    kAnyText,   // true unless it is empty, as Python's bool()
    kDigit,     // 1 for yes, 0 for no
    kFileOnly,  // not a flag
  };
  Part part;              // whose variable it is; kNone: the face's own
  absl::string_view key;  // "fsdp_version" for --fsdp-version
  Kind kind;
  absl::string_view values;     // to write in its place in the help; with '|', all that there are
  absl::string_view otherwise;  // YAML; empty: not set
  absl::string_view variable;
  bool lower = false;           // the variable has small letters
  absl::string_view help = "";  // empty: that it sets the variable
};

const std::vector<AccelerateSetting>& AccelerateSettings();
const AccelerateSetting* FindSetting(absl::string_view key);

// Their flags, for the face's table.
std::vector<FaceFlag> AccelerateSettingFlags();

// What accelerate's parser would hold, by key.
struct AccelerateValues {
  std::map<std::string, Value, std::less<>> of;
  std::set<std::string, std::less<>> given;  // on the command line

  const Value& At(absl::string_view key) const;  // null: not set
  bool IsTruth(absl::string_view key) const;     // as Python's bool()
  // Empty: not set. Lists and maps: empty, too.
  std::string Text(absl::string_view key) const;
};

// The settings' defaults, then the command line.
absl::StatusOr<AccelerateValues> TakeSettings(const FaceWords& words);

using Variables = std::vector<std::pair<std::string, std::string>>;

// Adds a part's variables. An error names a value that none can hold.
absl::Status AddPart(AccelerateSetting::Part part, const AccelerateValues& values, Variables& out);

}  // namespace dtrain::faces
