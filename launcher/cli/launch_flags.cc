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
       "can be reached, at least MIN, also after a restart",
       SetNodes},
      {"--spare", kGroup, "N", "keep N more hosts of the list to replace hosts that are lost",
       [](View v, RawLaunch& o) { return Set(v, 0, hosts::kMaxHosts, o.options.spares); }},
      {"--include", kGroup, "LIST", "use only these hosts and GPUs of the list: node1:0,2@node2",
       [](View v, RawLaunch& o) { return Set(v, o.options.include); }},
      {"--exclude", kGroup, "LIST", "use all but these: node1:3@node3",
       [](View v, RawLaunch& o) { return Set(v, o.options.exclude); }},
      {"--allow-same-machine", kGroup, "",
       "let listed hosts share a machine, as containers on its network do",
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
       "ranks per host; gpu: one per GPU; cpu: one per core;\n"
       "auto: one per GPU if the host has any, else one per core",
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
       "cores for each rank, not shared with other jobs; default: an equal\n"
       "share of the free cores, of which other jobs may use some",
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
       "repeated; -x overrides them",
       [](View v, RawLaunch& o) { return Set(v, o.env_files.emplace_back()); },
       {},
       true},
      {"--env", kGroup, "all|none",
       "forward the whole environment (default), or only what -x and\n"
       "--env-file name",
       [](View v, RawLaunch& o) { return Choose(v, kEnv, o.forward_all); }, Names(kEnv)},
      {"--node-caches", kGroup, "WHEN",
       "keep compilers' caches (Triton, Inductor, torch extensions, CUDA) on\n"
       "each node's own disk: on, off, or auto (default): if the home is on a\n"
       "network file system",
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
       "also set TF_CONFIG; the types of the ranks, in order:\n"
       "worker, or chief,worker, or chief,worker:4,ps:2,evaluator",
       SetTensorflow,
       {"worker", "chief,worker"}},
      {"--emulate",
       kGroup,
       "LIST",
       "also set the variables of a slurm or sagemaker task",
       SetEmulation,
       {"slurm", "sagemaker"}},
      {"--wdir", kGroup, "DIR", "working directory of the workers; default: the current one",
       [](View v, RawLaunch& o) { return Set(v, o.working_directory); }},
      {"--module,-m", kGroup, "", "COMMAND is a Python module: run python3 -u -m COMMAND",
       SetModule},
      {"--agent-store", kGroup, "",
       "let dtrain serve PyTorch's store at MASTER_PORT; by default\n"
       "rank 0 does",
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
      {"--ssh-port", kGroup, "PORT", "ssh port, unless the host list gives one",
       [](View v, RawLaunch& o) { return Set(v, 1, 65535, o.options.transport.ssh_port); }},
      {"--connect-timeout", kGroup, "TIME",
       "time allowed to reach a host, default 10s; until then, dtrain\n"
       "retries a host that is booting or whose name is not known yet",
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
       "also write files of this name: %r rank, %R padded, %l local rank,\n"
       "%n node, %h host, %j job, %s stream (logs/%h-%r.log)",
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
      {"--quiet,-q", kGroup, "", "print no progress line and no warnings",
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
       "unread output that a host keeps per rank and stream before the\n"
       "rank must wait; default 256M",
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
       "copy DIR to all hosts and run the workers there; only files that a\n"
       "host lacks are sent",
       SetStage},
      {"--stage-keep", kGroup, "", "leave the copies on the hosts when the job has ended",
       [](View v, RawLaunch& o) { return Set(v, o.options.stage.keep); }},
      {"--stage-quiet", kGroup, "", "do not report what was sent",
       [](View v, RawLaunch& o) { return Set(v, o.options.stage.quiet); }},
      {"--verify-code", kGroup, "DIR", "start only if DIR is the same on all hosts", SetVerifyCode},
      {"--verify-code-warn", kGroup, "", "with --verify-code: only warn about hosts that differ",
       [](View v, RawLaunch& o) { return Set(v, o.options.stage.only_warn); }},
      {"--stage-exclude",
       kGroup,
       "PATTERN",
       "leave out these files (.gitignore syntax); may be repeated",
       [](View v, RawLaunch& o) {
         o.options.stage.exclude.emplace_back(v);
         return absl::OkStatus();
       },
       {},
       /*repeats=*/true},
      {"--stage-include",
       kGroup,
       "PATTERN",
       "copy these even if git ignores them; may be repeated",
       [](View v, RawLaunch& o) {
         o.options.stage.include.emplace_back(v);
         return absl::OkStatus();
       },
       {},
       /*repeats=*/true},
      {"--stage-limit", kGroup, "SIZE", "maximum to copy; default 100M and 20000 files",
       SetStageLimit},
  };
}

std::vector<Flag> RestartFlags() {
  constexpr View kGroup = "Restarts";
  return {
      {"--max-restarts", kGroup, "N",
       "restart all workers, up to N times, after a rank fails or a host\n"
       "is lost; then end with exit code 208; default 0",
       [](View v, RawLaunch& o) { return Set(v, 0, 1000000, o.options.restarts.max_restarts); }},
      {"--restart-on",
       kGroup,
       "LIST",
       "restart after: failure (of a rank), node (a lost host), stall\n"
       "(exit code 205); default all",
       SetRestartOn,
       {"failure", "node", "stall", "all"}},
      {"--restart-window", kGroup, "TIME",
       "a restart counts towards --max-restarts for TIME; default 24h;\n"
       "0: for ever",
       [](View v, RawLaunch& o) {
         return Set(v, Duration::zero(), o.options.restarts.restart_window);
       }},
      {"--no-restart-on", kGroup, "CODES", "no restart after these exit codes of a rank: 2,64-78",
       [](View v, RawLaunch& o) {
         auto codes = ParseRanges(v, 255);
         if (!codes.ok()) return codes.status();
         o.options.restarts.never_on = *std::move(codes);
         return absl::OkStatus();
       }},
      {"--backoff", kGroup, "TIME[:TIME]",
       "pause before a restart, doubled after each short attempt, and the\n"
       "longest pause; default 1s:60s",
       SetBackoff},
      {"--min-uptime", kGroup, "TIME", "attempts below TIME are short (see --backoff); default 60s",
       [](View v, RawLaunch& o) {
         return Set(v, Duration::zero(), o.options.restarts.min_uptime);
       }},
      {"--scale-up",
       kGroup,
       "",
       "with -N MIN:MAX: restart on all hosts once lost ones have been back\n"
       "for TIME (default 5m) and the next checkpoint is complete\n"
       "(DTRAIN_CHECKPOINT_FILE); does not count towards --max-restarts",
       SetScaleUp,
       {},
       /*repeats=*/false,
       "TIME"},
      {"--state-dir", kGroup, "DIR",
       "where hosts keep dtrain.elastic's state for a restart; may be\n"
       "shared; default ~/.cache/dtrain/state on each host",
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
      {"--no-wait", kGroup, "", "with -d: return before the workers run",
       [](View v, RawLaunch& o) { return Set(v, o.options.detach.no_wait); }},
      {"--launcher-on", kGroup, "[USER@]HOST",
       "with -d: run the launcher on HOST, so that this machine may be\n"
       "switched off; dtrain must be installed there",
       [](View v, RawLaunch& o) { return Set(v, o.options.detach.launcher_on); }},
      {"--name", kGroup, "NAME", "with -d: a second name, unique among running jobs",
       [](View v, RawLaunch& o) { return Set(v, o.options.detach.name); }},
      {"--key", kGroup, "KEY",
       "with -d: idempotency key: launching again with the same key and\n"
       "command line returns the existing job",
       [](View v, RawLaunch& o) { return Set(v, o.options.detach.key); }},
      {"--on-end", kGroup, "COMMAND",
       "run COMMAND here when the job has ended, with DTRAIN_JOB_ID,\n"
       "DTRAIN_EXIT_CODE and DTRAIN_SUMMARY in its environment",
       [](View v, RawLaunch& o) { return Set(v, o.options.detach.on_end); }},
      {"--on-end-timeout", kGroup, "TIME", "end that command after TIME; default 1h",
       [](View v, RawLaunch& o) { return Set(v, kSecond, o.options.detach.on_end_timeout); }},
      {"--away", kGroup, "TIME",
       "with -d: how long workers run on without a launcher; default 1h,\n"
       "or the lease with --max-restarts or --spare",
       [](View v, RawLaunch& o) {
         Duration away{};
         absl::Status set = Set(v, kSecond, away);
         if (set.ok() && away > kLongestAway) {
           return absl::InvalidArgumentError(
               "at most 30d, so that orphaned workers do not run for ever");
         }
         o.options.detach.away = away;
         return set;
       }},
      {"--log-limit", kGroup, "SIZE",
       "with -d: output kept for dtrain logs; beyond that, the oldest is\n"
       "removed; default 4G",
       SetLogLimit},
      {"--keep", kGroup, "",
       "with -d: keep the ended job until dtrain rm; neither dtrain prune\n"
       "nor later jobs remove it",
       [](View v, RawLaunch& o) { return Set(v, o.options.detach.keep); }},
  };
}

std::vector<Flag> TimeFlags() {
  constexpr View kGroup = "Time and failure";
  return {
      {"--start-timeout", kGroup, "TIME",
       "fail unless all workers run within TIME, default 2m; if given,\n"
       "dtrain also retries unreachable hosts for that long",
       [](View v, RawLaunch& o) {
         o.options.job.retry_each = false;
         return Set(v, kSecond, o.options.job.start_timeout);
       }},
      {"--min-nodes", kGroup, "N",
       "leave out unreachable hosts if at least N join; once N have, the\n"
       "others get 30s. Default: all must join",
       [](View v, RawLaunch& o) {
         o.least_nodes = 0;
         return Set(v, 1, hosts::kMaxHosts, o.options.job.min_nodes);
       }},
      {"--wait", kGroup, "TIME",
       "wait this long for GPUs and cores held by other jobs (on hosts\n"
       "with a resident agent); default 0: fail at once",
       [](View v, RawLaunch& o) { return Set(v, Duration::zero(), o.options.job.wait); }},
      {"--lease", kGroup, "TIME", "a host that is silent for TIME is lost; default 15s",
       [](View v, RawLaunch& o) {
         absl::Status set = Set(v, kSecond, o.options.job.lease);
         o.options.transport.silence =
             std::max(transport::WayOptions().silence, o.options.job.lease);
         return set;
       }},
      {"--grace", kGroup, "TIME", "time from SIGTERM to SIGKILL when the job ends, default 30s",
       [](View v, RawLaunch& o) {
         o.options.grace_asked = true;
         return Set(v, Duration::zero(), o.options.job.grace);
       }},
      {"--grace-limit", kGroup, "TIME",
       "the same while ranks still write files, default 10m;\n"
       "0: as --grace",
       [](View v, RawLaunch& o) { return Set(v, Duration::zero(), o.options.job.grace_limit); }},
      {"--exit-timeout", kGroup, "TIME",
       "end the job if others still run this long after a rank exited\n"
       "with 0; 0: never. Default: warn after 30s, and end only jobs that\n"
       "wait for that rank",
       [](View v, RawLaunch& o) {
         o.options.job.exit_timeout_ends_job = true;
         return Set(v, Duration::zero(), o.options.job.exit_timeout);
       }},
      {"--collective-timeout", kGroup, "TIME",
       "end the job (exit code 205) if a libdtrain collective takes\n"
       "this long; always warn after 60s",
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
