// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtrain/v1/job.pb.h"
#include "launcher/cli/options.h"

namespace dtrain::cli {

// --contract auto
inline constexpr v1::Contract kUsualContracts[] = {v1::CONTRACT_TORCH, v1::CONTRACT_HOROVOD,
                                                   v1::CONTRACT_MPI, v1::CONTRACT_JAX,
                                                   v1::CONTRACT_DTRAIN};

// The values of the flags before they are put together.
struct RawLaunch {
  LaunchOptions options;
  std::vector<std::string> exports;  // -x
  bool forward_all = true;           // --env
  std::vector<std::string> env_files;
  std::string working_directory;     // --wdir
  v1::Container container;           // --container…; without an image: none
  bool module = false;               // -m: the command is a Python module
  std::optional<uint32_t> per_node;  // --map-by ppr:N:node
  uint32_t least_nodes = 0;          // MIN of -N MIN:MAX; 0: not given
  std::vector<v1::Contract> contracts{std::begin(kUsualContracts), std::end(kUsualContracts)};
  std::vector<v1::Contract> emulated;  // --emulate
  bool help = false;
};

// The one definition of a flag: its name is also that of its variable and configuration key.
struct Flag {
  absl::string_view names;  // "--np,-n,--num-proc": the first long one is its name
  absl::string_view group;
  // What to write in its place in the help; empty: a switch. FILE, PATH and DIR are such.
  absl::string_view value;
  absl::string_view help;  // \n begins another line
  // Takes a value over; the message of an error says what is wrong with the value.
  absl::Status (*set)(absl::string_view value, RawLaunch& out);
  std::vector<absl::string_view> words = {};  // values, or beginnings of values, to choose from
  bool repeats = false;  // each mention adds to the others, otherwise the last counts
  // Of a switch that may be given as --flag=VALUE, too: what to write for that. `set` is given
  // "true" or the value.
  absl::string_view may_take = {};
};

const std::vector<Flag>& LaunchFlags();

// Those of them that say which hosts there are and how they are reached.
std::vector<Flag> HostFlags();

// "np" for "--np,-n,--num-proc".
absl::string_view FlagName(const Flag& flag);

// Index of the flag with this long name, '_' the same as '-', or of this one-letter name; -1:
// there is none.
int FindLong(const std::vector<Flag>& flags, absl::string_view name);
int FindShort(const std::vector<Flag>& flags, char letter);

// Of all flags, without the dashes.
std::vector<std::string> LongNames(const std::vector<Flag>& flags);

}  // namespace dtrain::cli
