// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "launcher/hosts/hostfile.h"
#include "launcher/job/campaign_core.h"
#include "launcher/job/job_core.h"
#include "launcher/output/options.h"
#include "launcher/stage/snapshot.h"
#include "launcher/transport/ways.h"

namespace dtrain::cli {

// Of a job that goes on without its terminal.
struct DetachOptions {
  bool on = false;          // --detach
  bool no_wait = false;     // not until its workers run, either
  std::string name;         // empty: none
  std::string key;          // likewise
  std::string launcher_on;  // [USER@]HOST; empty: this machine
  std::optional<Duration> away;
  std::string on_end;  // a command for /bin/sh; empty: none
  Duration on_end_timeout = std::chrono::hours(1);
  bool keep = false;                  // until it is removed by name
  std::optional<uint64_t> log_limit;  // bytes of its output
  std::vector<std::string> words;     // the command line, from "launch" on
};

// Of a job whose ranks change while it runs.
struct ElasticOptions {
  bool on = false;                      // --elastic horovod
  std::optional<uint32_t> least_ranks;  // --min-np
  std::optional<uint32_t> most_ranks;   // --max-np
  std::optional<uint32_t> most_resets;  // --reset-limit
  std::string discover;                 // --discover; empty: hosts are those of a list
  std::optional<uint32_t> slots_per_host;
  // --cool-down: at first, and at most; none: for ever.
  std::optional<std::pair<Duration, Duration>> cool_down{
      {std::chrono::seconds(10), std::chrono::minutes(10)}};
};

// `dtrain launch`, all sources of flags put together and checked.
struct LaunchOptions {
  // Where, as given; LoadHosts makes `hosts` of them.
  std::string hostfile;
  std::string host_list;
  std::string rankfile;
  std::string include;
  std::string exclude;
  bool local = false;     // this machine, no hosts: a negative -np, or nothing else was named
  hosts::HostList hosts;  // valid after LoadHosts, also when local

  job::JobOptions job;            // all but job_id and probe_token
  job::CampaignOptions restarts;  // what flags say of it
  bool scale_up_asked = false;    // --scale-up was given for this launch; else it is a default
  bool grace_asked = false;       // likewise --grace
  ElasticOptions elastic;
  uint32_t spares = 0;  // hosts at the end of the list that only replace others
  transport::WayOptions transport;
  std::string host_flag;  // "--rsh": one of these that this command line has; hosts are due
  output::Options output;
  stage::Options stage;     // --stage
  std::string launched_in;  // the current directory, where one was needed
  bool verbose = false;
  bool quiet = false;
  std::string result_json;    // empty: none
  std::string timeline;       // empty: none
  std::string status_listen;  // [IP:]PORT; empty: none
  DetachOptions detach;
};

struct Command {
  std::string help;  // not empty: to be printed on stdout, and nothing else
  LaunchOptions launch;
};

// What the command line may depend on besides itself.
struct Surroundings {
  std::vector<std::string> environment;  // NAME=VALUE, as in environ
  std::string working_directory;         // absolute; empty when there is none
  // A file's text; NotFound when there is none, never blocks.
  std::function<absl::StatusOr<std::string>(const std::string& path)> read;
  // Whether a configuration file that nobody has named may be read. PERMISSION_DENIED: another user
  // can have written it. NOT_FOUND: there is none. Null: it may.
  std::function<absl::Status(const std::string& path)> check;
  // What the user is told besides. Null: nobody is.
  std::function<void(const std::string& warning)> warn;
  // Whether a file is one that the kernel runs by another: executable, and begins with "#!". Null:
  // none is.
  std::function<bool(const std::string& path)> is_script;
  // SlurmJobTrouble. Null: none is known.
  std::function<std::string(const std::string& id)> slurm_trouble;
};

// The value of a variable in `environment`; none when it is not set.
std::optional<absl::string_view> FindVariable(const Surroundings& surroundings,
                                              absl::string_view name);

// Those of this process.
Surroundings ProcessSurroundings();

// `args` begin with "launch". Flags come from the configuration file, then DTRAIN_<FLAG>
// variables, then the command line; the later wins. Every error is InvalidArgument, one or two
// lines, and leads to exit code 2.
absl::StatusOr<Command> ParseLaunch(const std::vector<std::string>& args,
                                    const Surroundings& surroundings);

// For a launcher that is not where the job was launched: relative names of files that it opens, as
// --result-json, become those of `launched_in`.
void NameFilesFully(LaunchOptions& options);

// The hosts, not read yet, and the ways to them, for commands that launch nothing. `words`:
// mentions of HostFlags() on the command line, as SplitWords gives them; the other sources are
// those of a launch, of which all else is left out. Errors as above.
absl::StatusOr<LaunchOptions> ParseHosts(const std::vector<std::string>& words,
                                         const Surroundings& surroundings);

// The hosts that --hostfile or --hosts names; no entries when neither was given.
absl::StatusOr<hosts::HostList> ReadHosts(const LaunchOptions& options,
                                          const Surroundings& surroundings);

// Reads the hostfile and rankfile, or takes the resource manager's allocation, or this machine:
// fills hosts, local, job.plan.rankfile and, inside an allocation, transport.rsh. Hosts' warnings
// are in hosts.warnings. Errors as above.
absl::Status LoadHosts(LaunchOptions& options, const Surroundings& surroundings);

}  // namespace dtrain::cli
