// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <string>

#include "launcher/cli/container_flags.h"
#include "launcher/cli/elastic_flags.h"
#include "launcher/cli/flag_table.h"
#include "launcher/cli/launch_values.h"
#include "launcher/cli/values.h"
#include "launcher/hosts/rankfile.h"

namespace dtrain::cli {
namespace {

constexpr Choice<plan::GpuBind> kGpuBind[] = {
    {"node", plan::GpuBind::kNode}, {"rank", plan::GpuBind::kRank}, {"none", plan::GpuBind::kNone}};
constexpr Choice<plan::CpuBind> kCpuBind[] = {{"gpu", plan::CpuBind::kGpu},
                                              {"numa", plan::CpuBind::kNuma},
                                              {"core", plan::CpuBind::kCore},
                                              {"none", plan::CpuBind::kNone}};
constexpr Choice<output::Tag> kTag[] = {
    {"none", output::Tag::kNone}, {"rank", output::Tag::kRank}, {"host", output::Tag::kHost}};
constexpr Choice<bool> kAgent[] = {{"ssh", false}, {"tcp", true}};
constexpr Choice<v1::NodeCaches> kNodeCaches[] = {
    {"auto", v1::NODE_CACHES_AUTO}, {"on", v1::NODE_CACHES_ON}, {"off", v1::NODE_CACHES_OFF}};
constexpr Choice<bool> kEnv[] = {{"all", true}, {"none", false}};

constexpr auto kMs = std::chrono::milliseconds(1);
constexpr auto kSecond = std::chrono::seconds(1);
constexpr Duration kLongestAway = std::chrono::hours(24 * 30);

std::vector<Flag> WhereFlags() {
  constexpr View kGroup = "Where";
  return {
      {"--hostfile", kGroup, "FILE", "hosts and their slots, one per line: node1 slots=4",
       [](View v, RawLaunch& o) { return Set(v, o.options.hostfile); }},
      {"--hosts,-H,--host", kGroup, "LIST", "the same on the command line: -H node1:4,node2:4",
       [](View v, RawLaunch& o) { return Set(v, o.options.host_list); }},
      {"--nnodes,-N,--nodes", kGroup, "N|MIN:MAX",
       "use only the first N hosts; MIN:MAX: as many of the first MAX as\n"
       "can be reached, MIN at least, also after a restart",
       SetNodes},
      {"--spare", kGroup, "N", "keep N more hosts of the list to replace hosts that are lost",
       [](View v, RawLaunch& o) { return Set(v, 0, hosts::kMaxHosts, o.options.spares); }},
      {"--include", kGroup, "LIST", "use only these hosts and GPUs of the list: node1:0,2@node2",
       [](View v, RawLaunch& o) { return Set(v, o.options.include); }},
      {"--exclude", kGroup, "LIST", "use all but these: node1:3@node3",
       [](View v, RawLaunch& o) { return Set(v, o.options.exclude); }},
      {"--allow-same-machine", kGroup, "",
       "hosts of the list may be one machine: containers with its network",
       [](View v, RawLaunch& o) { return Set(v, o.options.job.shared_machines); }},
      {"--net", kGroup, "CIDR|NAME", "network or interface that the workers use: --net 10.1.0.0/16",
       SetNet},
  };
}

std::vector<Flag> HowManyFlags() {
  constexpr View kGroup = "How many";
  return {
      {"--np,-n,--num-proc", kGroup, "N",
       "number of ranks, also -np N; default: all slots.\n"
       "Negative: that many ranks on this machine (-np -4)",
       SetRanks},
      {"--ppn,--nproc-per-node,--npernode",
       kGroup,
       "N|gpu|cpu|auto",
       "ranks per host; gpu: one for each of its GPUs; cpu: for each\n"
       "core; auto: for each GPU if it has any, else for each core",
       SetPerNode,
       {"gpu", "cpu", "auto"}},
      {"--map-by",
       kGroup,
       "HOW",
       "slot: fill one host after another (default);\n"
       "node: one rank per host in turn; ppr:N:node: N per host",
       SetMapBy,
       {"slot", "node", "ppr:"}},
      {"--rankfile", kGroup, "FILE", "host and cores of each rank: rank 0=node1 slot=0-3",
       [](View v, RawLaunch& o) { return Set(v, o.options.rankfile); }},
      {"--oversubscribe", kGroup, "", "allow more ranks than slots or GPUs",
       [](View v, RawLaunch& o) { return Set(v, o.options.job.plan.oversubscribe); }},
      {"--gpus-per-rank", kGroup, "N", "GPUs for each rank, default 1",
       [](View v, RawLaunch& o) { return Set(v, 0, 1024, o.options.job.plan.gpus_per_rank); }},
      {"--cores-per-rank", kGroup, "N",
       "cores for each rank; default: an equal share of what is free, of which\n"
       "one counts as the rank's where other jobs may come",
       [](View v, RawLaunch& o) { return Set(v, 1, 8192, o.options.job.plan.cores_per_rank); }},
  };
}

std::vector<Flag> EnvironmentFlags() {
  constexpr View kGroup = "Environment";
  return {
      {"--export,-x",
       kGroup,
       "NAME[=VALUE]",
       "set a variable for the workers, or pass on your own; may be\n"
       "repeated (-x NCCL_DEBUG=INFO -x WANDB_API_KEY)",
       [](View v, RawLaunch& o) {
         o.exports.emplace_back(v.data(), v.size());
         return absl::OkStatus();
       },
       {},
       true},
      {"--env-file",
       kGroup,
       "FILE",
       "set the variables of FILE, one NAME=VALUE per line; may be\n"
       "repeated; -x wins",
       [](View v, RawLaunch& o) { return Set(v, o.env_files.emplace_back()); },
       {},
       true},
      {"--env", kGroup, "all|none",
       "forward the whole environment (default), or only what -x and\n"
       "--env-file name",
       [](View v, RawLaunch& o) { return Choose(v, kEnv, o.forward_all); }, Names(kEnv)},
      {"--node-caches", kGroup, "WHEN",
       "give compilers' caches (Triton, Inductor, torch extensions, CUDA) a folder\n"
       "on each node's own disk: auto (default): where the home is on a network\n"
       "file system; on; off",
       [](View v, RawLaunch& o) {
         v1::NodeCaches when = v1::NODE_CACHES_AUTO;
         absl::Status status = Choose(v, kNodeCaches, when);
         o.options.job.part.set_node_caches(when);
         return status;
       },
       Names(kNodeCaches)},
      {"--contract",
       kGroup,
       "LIST",
       "which launchers' variables the workers get: auto (default), none, or some of\n"
       "torch, horovod, mpi, jax, dtrain and torchrun-agent",
       SetContracts,
       {"auto", "none", "torch", "horovod", "mpi", "jax", "dtrain", "torchrun-agent"}},
      {"--tf-config",
       kGroup,
       "LAYOUT",
       "also set TF_CONFIG; the types of the ranks in their order:\n"
       "worker, or chief,worker, or chief,worker:4,ps:2,evaluator",
       SetTensorflow,
       {"worker", "chief,worker"}},
      {"--emulate",
       kGroup,
       "LIST",
       "also set the variables of a task of slurm or sagemaker",
       SetEmulation,
       {"slurm", "sagemaker"}},
      {"--wdir", kGroup, "DIR", "working directory of the workers; default: the current one",
       [](View v, RawLaunch& o) { return Set(v, o.working_directory); }},
      {"--module,-m", kGroup, "", "COMMAND is a Python module: run python3 -u -m COMMAND",
       SetModule},
      {"--agent-store", kGroup, "",
       "serve PyTorch's store at MASTER_PORT from dtrain itself; by\n"
       "default rank 0 does",
       [](View v, RawLaunch& o) {
         bool on = false;
         absl::Status status = Set(v, on);
         o.options.job.part.set_agent_store(on);
         return status;
       }},
  };
}

std::vector<Flag> SshFlags() {
  constexpr View kGroup = "Reaching hosts";
  return {
      {"--ssh-config", kGroup, "FILE", "read FILE instead of ~/.ssh/config",
       [](View v, RawLaunch& o) { return Set(v, o.options.transport.ssh_config); }},
      {"--ssh-port", kGroup, "PORT", "ssh port of hosts whose entry in the host list has none",
       [](View v, RawLaunch& o) { return Set(v, 1, 65535, o.options.transport.ssh_port); }},
      {"--connect-timeout", kGroup, "TIME",
       "time allowed to reach a host, default 10s. Until then it is tried\n"
       "again if it boots or its name is not known yet",
       [](View v, RawLaunch& o) { return Set(v, 100 * kMs, o.options.transport.connect_timeout); }},
      {"--rsh", kGroup, "COMMAND",
       "reach hosts with this command instead of ssh\n"
       "(--rsh \"kubectl exec -i {host} --\")",
       [](View v, RawLaunch& o) { return Set(v, o.options.transport.rsh); }},
      {"--agent", kGroup, "ssh|tcp",
       "ssh: reach hosts by ssh (default);\n"
       "tcp: connect to their resident agents over TCP with TLS",
       [](View v, RawLaunch& o) { return Choose(v, kAgent, o.options.transport.tcp); },
       Names(kAgent)},
      {"--agent-port", kGroup, "PORT", "port of the resident agents, default 9797",
       [](View v, RawLaunch& o) { return Set(v, 1, 65535, o.options.transport.agent_port); }},
      {"--tls-dir", kGroup, "DIR",
       "directory of your ca.crt, user.crt and user.key; default\n"
       "~/.config/dtrain/tls",
       [](View v, RawLaunch& o) { return Set(v, o.options.transport.tls_directory); }},
  };
}

std::vector<Flag> OutputFlags() {
  constexpr View kGroup = "Output";
  return {
      {"--tag-output", kGroup, "WHAT",
       "start each line with [3] (rank), [node2:3] (host) or nothing\n"
       "(none); default: rank if the job has more than one",
       [](View v, RawLaunch& o) { return Choose(v, kTag, o.options.output.tag); }, Names(kTag)},
      {"--timestamps", kGroup, "", "start each line with the time it arrived",
       [](View v, RawLaunch& o) { return Set(v, o.options.output.timestamps); }},
      {"--no-fold", kGroup, "",
       "print the traceback of every rank, even if several ranks\nwrote the same",
       [](View v, RawLaunch& o) {
         bool all = false;
         absl::Status status = Set(v, all);
         o.options.output.fold = !all;
         return status;
       }},
      {"--log-dir", kGroup, "DIR", "also write the stdout and stderr of each rank to files in DIR",
       [](View v, RawLaunch& o) { return Set(v, o.options.output.log_dir); }},
      {"--output", kGroup, "PATTERN",
       "or name the files: %r rank, %R padded, %l local rank, %n node,\n"
       "%h host, %j job, %s stream (logs/%h-%r.log)",
       SetOutput},
      {"--show-ranks",
       kGroup,
       "RANKS",
       "print only what these ranks write: 0,8-15; default all",
       SetShownRanks,
       {"all"}},
      {"--stdin",
       kGroup,
       "WHO",
       "the rank that reads dtrain's input (default 0), all or none",
       SetStdin,
       {"none", "all"}},
      {"--verbose,-v", kGroup, "", "print more: the rank table, and the time of each phase",
       [](View v, RawLaunch& o) { return Set(v, o.options.verbose); }},
      {"--quiet,-q", kGroup, "", "no progress line, no warnings",
       [](View v, RawLaunch& o) { return Set(v, o.options.quiet); }},
      {"--dry-run", kGroup, "", "print where each rank would run, then exit",
       [](View v, RawLaunch& o) { return Set(v, o.options.job.dry_run); }},
      {"--result-json", kGroup, "FILE", "write how the job went, as JSON",
       [](View v, RawLaunch& o) { return Set(v, o.options.result_json); }},
      {"--timeline", kGroup, "FILE", "write a trace of the job, for ui.perfetto.dev",
       [](View v, RawLaunch& o) { return Set(v, o.options.timeline); }},
      {"--status-listen", kGroup, "[IP:]PORT",
       "also answer status queries over HTTP on this loopback port;\n"
       "0: any free port",
       [](View v, RawLaunch& o) { return Set(v, o.options.status_listen); }},
      {"--spool-limit", kGroup, "SIZE",
       "output that a host keeps per rank and stream before the rank\n"
       "has to wait; default 256M",
       SetSpool},
  };
}

std::vector<Flag> BindingFlags() {
  constexpr View kGroup = "Binding";
  return {
      {"--gpu-bind", kGroup, "WHAT",
       "node: each rank sees all GPUs of the job on its host (default);\n"
       "rank: only its own; none: leave CUDA_VISIBLE_DEVICES as it is",
       [](View v, RawLaunch& o) { return Choose(v, kGpuBind, o.options.job.plan.gpu_bind); },
       Names(kGpuBind)},
      {"--bind", kGroup, "WHAT",
       "cores of a rank: gpu: near its GPU (default); numa: a NUMA node;\n"
       "core: an equal share; none: all",
       [](View v, RawLaunch& o) { return Choose(v, kCpuBind, o.options.job.plan.cpu_bind); },
       Names(kCpuBind)},
      {"--require-cgroup", kGroup, "",
       "fail if a node cannot give the workers a cgroup of their own",
       [](View v, RawLaunch& o) {
         bool on = false;
         absl::Status status = Set(v, on);
         o.options.job.part.set_require_cgroup(on);
         return status;
       }},
      {"--core-dumps", kGroup, "", "do not set the core file limit of the workers to 0",
       [](View v, RawLaunch& o) {
         bool on = false;
         absl::Status status = Set(v, on);
         o.options.job.part.set_core_dumps(on);
         return status;
       }},
  };
}

std::vector<Flag> CodeFlags() {
  constexpr View kGroup = "Code";
  return {
      {"--stage", kGroup, "DIR",
       "copy the files of DIR to all hosts first, what they lack of them,\n"
       "and run the workers there",
       SetStage},
      {"--stage-keep", kGroup, "", "leave the copies on the hosts when the job has ended",
       [](View v, RawLaunch& o) { return Set(v, o.options.stage.keep); }},
      {"--stage-quiet", kGroup, "", "do not say what was sent",
       [](View v, RawLaunch& o) { return Set(v, o.options.stage.quiet); }},
      {"--verify-code", kGroup, "DIR",
       "start nothing unless all hosts have in DIR what this one has", SetVerifyCode},
      {"--verify-code-warn", kGroup, "", "with --verify-code: only warn of hosts that differ",
       [](View v, RawLaunch& o) { return Set(v, o.options.stage.only_warn); }},
      {"--stage-exclude",
       kGroup,
       "PATTERN",
       "not these files, as .gitignore has them; may be given again",
       [](View v, RawLaunch& o) {
         o.options.stage.exclude.emplace_back(v);
         return absl::OkStatus();
       },
       {},
       /*repeats=*/true},
      {"--stage-include",
       kGroup,
       "PATTERN",
       "these too, though git ignores them; may be given again",
       [](View v, RawLaunch& o) {
         o.options.stage.include.emplace_back(v);
         return absl::OkStatus();
       },
       {},
       /*repeats=*/true},
      {"--stage-limit", kGroup, "SIZE", "refuse more than that; default 100M and 20000 files",
       SetStageLimit},
  };
}

std::vector<Flag> RestartFlags() {
  constexpr View kGroup = "Restarts";
  return {
      {"--max-restarts", kGroup, "N",
       "start all workers again, up to N times, after a rank failed or a\n"
       "host was lost (exit code 208 when none are left); default 0",
       [](View v, RawLaunch& o) { return Set(v, 0, 1000000, o.options.restarts.max_restarts); }},
      {"--restart-on",
       kGroup,
       "LIST",
       "what to restart after: failure (of a rank), node (lost), stall\n"
       "(--collective-timeout); default all",
       SetRestartOn,
       {"failure", "node", "stall", "all"}},
      {"--restart-window", kGroup, "TIME",
       "a restart counts towards --max-restarts for TIME; default 24h, 0\n"
       "for ever",
       [](View v, RawLaunch& o) {
         return Set(v, Duration::zero(), o.options.restarts.restart_window);
       }},
      {"--no-restart-on", kGroup, "CODES", "exit codes of a rank that end the job, such as 2,64-78",
       [](View v, RawLaunch& o) {
         auto codes = ParseRanges(v, 255);
         if (codes.ok()) o.options.restarts.never_on = *std::move(codes);
         return codes.status();
       }},
      {"--backoff", kGroup, "TIME[:TIME]",
       "pause before a restart, doubled after each short attempt, and\n"
       "the longest; default 1s:60s",
       SetBackoff},
      {"--min-uptime", kGroup, "TIME", "an attempt that ran for less is a short one, default 60s",
       [](View v, RawLaunch& o) {
         return Set(v, Duration::zero(), o.options.restarts.min_uptime);
       }},
      {"--scale-up",
       kGroup,
       "",
       "with -N MIN:MAX: start a job that goes on without some hosts again,\n"
       "once they are back for TIME (default 5m) and rank 0 has written\n"
       "DTRAIN_CHECKPOINT_FILE since its last start; costs no restart",
       SetScaleUp,
       {},
       /*repeats=*/false,
       "TIME"},
      {"--state-dir", kGroup, "DIR",
       "where hosts keep the state of dtrain.elastic for a restart; may be\n"
       "shared; default ~/.cache/dtrain/state of each host",
       SetStateDir},
      {"--join-timeout", kGroup, "TIME", "how long a restart waits for enough hosts, default 10m",
       [](View v, RawLaunch& o) { return Set(v, kSecond, o.options.restarts.join_timeout); }},
  };
}

std::vector<Flag> DetachFlags() {
  constexpr View kGroup = "Without a terminal";
  return {
      {"--detach,-d", kGroup, "",
       "print the job's id when its workers run, and leave it running;\n"
       "dtrain attach, logs, wait and stop take that id",
       [](View v, RawLaunch& o) { return Set(v, o.options.detach.on); }},
      {"--no-wait", kGroup, "", "with -d: do not wait until the workers run",
       [](View v, RawLaunch& o) { return Set(v, o.options.detach.no_wait); }},
      {"--launcher-on", kGroup, "[USER@]HOST",
       "with -d: run the launcher on HOST, so that this machine may be\n"
       "switched off; dtrain must be installed there",
       [](View v, RawLaunch& o) { return Set(v, o.options.detach.launcher_on); }},
      {"--name", kGroup, "NAME", "with -d: another name for the job, of which one may run",
       [](View v, RawLaunch& o) { return Set(v, o.options.detach.name); }},
      {"--key", kGroup, "KEY",
       "with -d: the same key and command line is the same job, however\n"
       "often it is launched",
       [](View v, RawLaunch& o) { return Set(v, o.options.detach.key); }},
      {"--on-end", kGroup, "COMMAND",
       "run this here when the job has ended, with DTRAIN_JOB_ID,\n"
       "DTRAIN_EXIT_CODE and DTRAIN_SUMMARY in its environment",
       [](View v, RawLaunch& o) { return Set(v, o.options.detach.on_end); }},
      {"--on-end-timeout", kGroup, "TIME", "end that command when it has run so long; default 1h",
       [](View v, RawLaunch& o) { return Set(v, kSecond, o.options.detach.on_end_timeout); }},
      {"--away", kGroup, "TIME",
       "with -d: how long workers run on without a launcher; default 1h,\n"
       "with --max-restarts or --spare the lease",
       [](View v, RawLaunch& o) {
         Duration away{};
         absl::Status set = Set(v, kSecond, away);
         if (set.ok() && away > kLongestAway) {
           return absl::InvalidArgumentError(
               "at most 30d: workers that nobody hears of are not to run for ever");
         }
         o.options.detach.away = away;
         return set;
       }},
      {"--log-limit", kGroup, "SIZE",
       "with -d: how much of the job's output is kept for dtrain logs; of\n"
       "more, the oldest is removed; default 4G",
       SetLogLimit},
      {"--keep", kGroup, "",
       "with -d: keep the job until dtrain rm; dtrain prune and the ends\n"
       "of other jobs do not remove it",
       [](View v, RawLaunch& o) { return Set(v, o.options.detach.keep); }},
  };
}

std::vector<Flag> TimeFlags() {
  constexpr View kGroup = "Time and failure";
  return {
      {"--start-timeout", kGroup, "TIME",
       "time until all workers must run, default 2m. If given, hosts that\n"
       "cannot be reached yet are tried again for as long",
       [](View v, RawLaunch& o) {
         o.options.job.retry_each = false;
         return Set(v, kSecond, o.options.job.start_timeout);
       }},
      {"--min-nodes", kGroup, "N",
       "leave out hosts that cannot be reached, if at least N can;\n"
       "once N are there, the others have 30s. Default: all hosts",
       [](View v, RawLaunch& o) { return Set(v, 1, hosts::kMaxHosts, o.options.job.min_nodes); }},
      {"--wait", kGroup, "TIME",
       "wait this long for GPUs and cores held by other jobs (on hosts\n"
       "with a resident agent); default 0: fail at once",
       [](View v, RawLaunch& o) { return Set(v, Duration::zero(), o.options.job.wait); }},
      {"--lease", kGroup, "TIME", "silence after which a host is lost, default 15s",
       [](View v, RawLaunch& o) {
         absl::Status set = Set(v, kSecond, o.options.job.lease);
         o.options.transport.silence =
             std::max(transport::WayOptions().silence, o.options.job.lease);
         return set;
       }},
      {"--grace", kGroup, "TIME", "time between TERM and KILL when the job ends, default 30s",
       [](View v, RawLaunch& o) {
         o.options.grace_asked = true;
         return Set(v, Duration::zero(), o.options.job.grace);
       }},
      {"--grace-limit", kGroup, "TIME",
       "the same while the ranks still write files, default 10m;\n"
       "0: no more than --grace",
       [](View v, RawLaunch& o) { return Set(v, Duration::zero(), o.options.job.grace_limit); }},
      {"--exit-timeout", kGroup, "TIME",
       "end the job if others still run this long after a rank exited\n"
       "with 0; 0: never. If not given: warn after 30s, and end only a\n"
       "job that waits for that rank",
       [](View v, RawLaunch& o) {
         o.options.job.exit_timeout_ends_job = true;
         return Set(v, Duration::zero(), o.options.job.exit_timeout);
       }},
      {"--collective-timeout", kGroup, "TIME",
       "end the job (exit code 205) if a libdtrain collective takes\n"
       "this long; in any case, warn after 60s",
       [](View v, RawLaunch& o) { return Set(v, kSecond, o.options.job.collective_timeout); }},
      {"--timeout", kGroup, "TIME", "end the job after this long (exit code 209)",
       [](View v, RawLaunch& o) { return Set(v, kMs, o.options.job.time_limit); }},
  };
}

}  // namespace

const std::vector<Flag>& LaunchFlags() {
  static const std::vector<Flag>* flags = [] {
    auto* all = new std::vector<Flag>();
    for (const std::vector<Flag>& group :
         {WhereFlags(), HowManyFlags(), EnvironmentFlags(), ContainerFlags(), SshFlags(),
          OutputFlags(), BindingFlags(), CodeFlags(), RestartFlags(), ElasticFlags(), DetachFlags(),
          TimeFlags()}) {
      all->insert(all->end(), group.begin(), group.end());
    }
    all->push_back({"--config", "Other", "FILE",
                    "read flags from FILE instead of ~/.config/dtrain/config.toml",
                    // Both were looked at before any value is set.
                    [](View, RawLaunch&) { return absl::OkStatus(); }});
    all->push_back({"--no-config", "Other", "", "read no configuration file",
                    [](View, RawLaunch&) { return absl::OkStatus(); }});
    all->push_back({"--help,-h", "Other", "", "explain the common flags",
                    [](View v, RawLaunch& o) { return Set(v, o.help); }});
    all->push_back({"--help-all", "Other", "", "explain all flags",
                    [](View v, RawLaunch& o) { return Set(v, o.help); }});
    return all;
  }();
  return *flags;
}

}  // namespace dtrain::cli
