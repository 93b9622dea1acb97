// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dtrain::faces {

// A flag of another launcher, and what becomes of it here.
struct FaceFlag {
  enum class Becomes {
    kFlag,      // `to` of dtrain launch, with this value or with the one in `to`: "--bind core"
    kVariable,  // `to` for the workers, with this value or with the one in `to`: "NAME=1"
    kIgnored,   // nothing; the user hears `to`, unless it is empty
    kRejected,  // an error that says `to`
    kOwn,       // what the face makes of it
  };
  absl::string_view names;  // "--nnodes" or "--hosts,-H"; '_' is the same as '-'
  // What to write in its place in the help, a word for each value; empty: a switch.
  absl::string_view values;
  Becomes becomes = Becomes::kOwn;
  absl::string_view to = "";
  absl::string_view help = "";  // what it does here; empty where `to` says it
};

// Why flags about a rendezvous are ignored.
inline constexpr absl::string_view kRendezvous = "dtrain finds the address and the port itself";

// How a launcher reads its command line.
struct Spelling {
  bool one_dash = false;       // -hostfile is --hostfile
  bool abbreviations = false;  // --nproc is --nproc-per-node
  bool behind_script = false;  // its own flags may stand there, too; what it lacks is the script's
};

struct Mention {
  const FaceFlag* flag = nullptr;   // null: one of dtrain launch
  std::string spelled;              // as typed, without a value
  std::vector<std::string> values;  // as many as the flag takes; of dtrain's: the words for it
};

struct FaceWords {
  std::vector<Mention> mentions;
  std::vector<std::string> command;  // the rest, without a "--" in front
};

// "nnodes" of "--nnodes,--n": a flag's name in messages and in Find.
absl::string_view NameOf(const FaceFlag& flag);

// Flags end at the first word that is none, or behind "--"; `behind_script` goes on. A flag that
// the launcher does not have and dtrain launch does is dtrain's, under its long name.
absl::StatusOr<FaceWords> SplitFace(const std::vector<FaceFlag>& flags, Spelling spelling,
                                    const std::vector<std::string>& args);

}  // namespace dtrain::faces
