// SPDX-License-Identifier: Apache-2.0
#include "common/base/env_names.h"

#include "absl/strings/match.h"
#include "absl/types/span.h"

namespace dtrain {
namespace {

// A name, or a prefix when it ends in '*'.
constexpr absl::string_view kHostBound[] = {
    "DBUS_*",
    "DISPLAY",
    "GPG_AGENT_INFO",
    "GPG_TTY",
    "HOME",
    "HOST",
    "HOSTNAME",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "K_MPI_JOB_ROLE",
    "KRB5CCNAME",
    "LISTEN_FDNAMES",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LOGNAME",
    "MAIL",
    "MAINPID",
    "MANAGERPID",
    "MEMORY_PRESSURE_*",
    "NOTIFY_SOCKET",
    "OLDPWD",
    "PWD",
    "SHELL",
    "SHLVL",
    "SSH_*",
    "STY",
    "SUDO_*",
    "SYSTEMD_EXEC_PID",
    "TMPDIR",
    "TMUX",
    "TMUX_PANE",
    "USER",
    "WATCHDOG_*",
    "WAYLAND_DISPLAY",
    "WINDOW",
    "WINDOWID",
    "XAUTHORITY",
    "XDG_RUNTIME_DIR",
    "XDG_SEAT",
    "XDG_SESSION_*",
    "XDG_VTNR",
    "_",
};

constexpr absl::string_view kScrubbed[] = {
    "CROSS_RANK",
    "CROSS_SIZE",
    "DTRAIN_STATE_FOLDER",
    "FLUX_*",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "HOROVOD_CONTROLLER",
    "HOROVOD_CPU_OPERATIONS",
    "HOROVOD_CROSS_*",
    "HOROVOD_ELASTIC",
    "HOROVOD_GLOO_RENDEZVOUS_*",
    "HOROVOD_HOSTNAME",
    "HOROVOD_LOCAL_*",
    "HOROVOD_RANK",
    "HOROVOD_SIZE",
    "HYDI_CONTROL_FD",
    "JAX_COORDINATOR_*",
    "JOB_COMPLETION_INDEX",
    "JSM_*",
    "LOCAL_RANK",
    "LOCAL_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_*",
    "MPI_LOCAL*",
    "MV2_COMM_WORLD_*",
    "NODE_RANK",
    "OMPI_COMM_WORLD_*",
    "OMPI_MCA_ess*",
    "OMPI_MCA_orte_*",
    "OMPI_UNIVERSE_SIZE",
    "PALS_*",
    "PMIX_*",
    "PMI_*",
    "RANK",
    "ROLE_*",
    "SLURMD_NODENAME",
    "SLURM_CPUS_ON_NODE",
    "SLURM_CPU_BIND*",
    "SLURM_GPUS_ON_NODE",
    "SLURM_GTIDS",
    "SLURM_LAUNCH_NODE_IPADDR",
    "SLURM_LOCALID",
    "SLURM_MPI_TYPE",
    "SLURM_NODEID",
    "SLURM_NPROCS",
    "SLURM_NTASKS*",
    "SLURM_PROCID",
    "SLURM_SRUN_COMM_*",
    "SLURM_STEP*",
    "SLURM_TASK*",
    "SLURM_TOPOLOGY_ADDR*",
    "SLURM_UMASK",
    "SRUN_DEBUG",
    "TORCHELASTIC_*",
    "WORLD_SIZE",
};

bool Matches(absl::Span<const absl::string_view> patterns, absl::string_view name) {
  for (absl::string_view pattern : patterns) {
    if (pattern.back() == '*' ? absl::StartsWith(name, pattern.substr(0, pattern.size() - 1))
                              : name == pattern) {
      return true;
    }
  }
  return false;
}

}  // namespace

bool IsHostBound(absl::string_view name) { return Matches(kHostBound, name); }

bool IsScrubbed(absl::string_view name) { return Matches(kScrubbed, name); }

}  // namespace dtrain
