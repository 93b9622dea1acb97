// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "launcher/cli/options.h"
#include "launcher/faces/translation.h"

namespace dtrain::faces {

// Parameters of Open MPI (--mca KEY VALUE, OMPI_MCA_KEY) that mean something to dtrain.
struct McaParameters {
  std::string agent, args;  // the program by which hosts are reached, and options for it
  std::string way;          // the last parameter that gave one of these: "--mca plm_rsh_args"
  std::string hostfile;
  std::string binding, binding_name;
  bool oversubscribe = false;
};

// False: the parameter is none of those. `spelled` as in McaParameters::way.
bool NoteParameter(absl::string_view key, absl::string_view value, absl::string_view spelled,
                   McaParameters& out);

// Those set as variables, unless `line` or a variable of dtrain's says otherwise.
McaParameters ParametersOfEnvironment(const LineBuilder& line,
                                      const cli::Surroundings& surroundings);

// Adds their flags to `line`.
absl::Status ApplyParameters(const McaParameters& parameters, LineBuilder& line, Translation& out);

// "core:overload-allowed", as the value of the flag or parameter `name`, becomes --bind.
absl::Status Bind(absl::string_view name, absl::string_view what, LineBuilder& line);

}  // namespace dtrain::faces
