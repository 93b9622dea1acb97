// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/hosts/hostfile.h"
#include "launcher/hosts/rankfile.h"

namespace dtrain::hosts {

// The machines a resource manager gave to the job we were started in.
struct Allocation {
  std::string manager;  // "Slurm", "PBS", "LSF", "Grid Engine", "MPIJob" or "Indexed Job"
  HostList hosts;
  std::string rsh;  // a value for --rsh that stays inside the allocation; empty: use ssh
  std::vector<RankPlace>
      places{};  // of each rank, where the job's user has said it; empty: not said
};

// A variable of the environment; none when it is not set. An empty value counts as not set.
using EnvLookup = std::function<std::optional<std::string>(const std::string& name)>;
// The text of a file, such as ReadHostfile.
using FileReader = std::function<absl::StatusOr<std::string>(const std::string& path)>;

// None outside of any allocation. An error when a manager's job id is set but its host list is
// missing or cannot be read: guessing would put the job on machines that are not ours. Also an
// error when the manager has started several copies of our command, in those that must not launch.
// `nodes`: how many -N asks for; only in a Kubernetes Indexed Job does the list depend on it.
absl::StatusOr<std::optional<Allocation>> DetectAllocation(const EnvLookup& env,
                                                           const FileReader& read,
                                                           std::optional<uint32_t> nodes = {});

struct Variable {
  std::string name;
  std::string value;
};

// The first of these variables that is set and not empty.
std::optional<Variable> FirstSet(const EnvLookup& env, const std::vector<std::string>& names);

// The value of a variable; empty when it is not set.
std::string Get(const EnvLookup& env, const std::string& name);

// The allocation of the Grid Engine job we are in; PE_HOSTFILE is known to be set, which is so in
// parallel environments only.
absl::StatusOr<Allocation> ReadGridEngine(const EnvLookup& env, const FileReader& read);

}  // namespace dtrain::hosts
