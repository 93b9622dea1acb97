// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/mpi_watch.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace dtrain::shepherd {
namespace {

constexpr size_t kMostNamed = 8;

// Open MPI 3 to 5; MPICH, Intel MPI and MVAPICH2, which share an interface.
constexpr absl::string_view kOpenMpi = "libmpi.so.40";
constexpr absl::string_view kMpichLike[] = {"libmpich.so.12", "libmpi.so.12", "libmpicxx.so.12"};

// How to be in the world, and how to say that one does not want to be.
constexpr absl::string_view kRemedy =
    "It cannot find the others without the variables that dtrain sets for it (PMI_*, PMIX_*): pass "
    "the environment on, e.g. `env NAME=VALUE program` in place of `env -i program`, `apptainer "
    "exec` without --cleanenv, `sudo -E`; or give -x DTRAIN_SINGLETONS=1 if each rank is "
    "meant to compute alone";

bool IsVersionOf(absl::string_view file, absl::string_view library) {
  return file == library || (absl::ConsumePrefix(&file, library) && absl::StartsWith(file, "."));
}

// "1 rank: 3", "ranks 0, 1, 2 …".
std::string Name(const std::vector<uint32_t>& ranks) {
  std::vector<uint32_t> named = ranks;
  if (named.size() > kMostNamed) named.resize(kMostNamed);
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(named, ", "),
                      named.size() < ranks.size()
                          ? absl::StrCat(" and ", ranks.size() - named.size(), " more")
                          : "");
}

}  // namespace

MpiSigns ReadMpiSigns(absl::string_view maps, absl::string_view environment) {
  MpiSigns signs;
  bool open_mpi = false;
  bool singleton = false;  // Open MPI 4's module for it, which those that are launched drop
  bool segment = false;    // shared memory that Open MPI 5 opens in MPI_Init, alone or not
  bool transport = false;  // what MPICH's like open in MPI_Init
  for (const absl::string_view line : absl::StrSplit(maps, '\n')) {
    const size_t path = line.find('/');
    if (path == absl::string_view::npos) continue;
    const absl::string_view file = line.substr(line.rfind('/') + 1);
    if (IsVersionOf(file, kOpenMpi)) {
      open_mpi = true;
      signs.library = std::string(kOpenMpi);
    }
    for (const absl::string_view library : kMpichLike) {
      if (IsVersionOf(file, library)) signs.library = std::string(library);
    }
    singleton = singleton || file == "mca_ess_singleton.so";
    segment = segment || absl::StartsWith(file, "sm_segment.");
    transport = transport || absl::StartsWith(file, "ucx_shm_posix_") ||
                absl::StartsWith(file, "Intel_MPI_");
  }
  signs.cut_off = true;
  for (const absl::string_view entry : absl::StrSplit(environment, '\0')) {
    if (absl::StartsWith(entry, "PMI_FD=") || absl::StartsWith(entry, "PMIX_NAMESPACE=")) {
      signs.cut_off = false;
    }
  }
  if (signs.library.empty()) return signs;
  signs.perhaps_alone = open_mpi && singleton && !signs.cut_off;
  signs.alone = signs.cut_off && (open_mpi ? singleton || segment : transport);
  return signs;
}

bool IsSingletonDaemon(absl::string_view command_line) {
  const std::vector<absl::string_view> words = absl::StrSplit(command_line, '\0');
  const absl::string_view program = words[0].substr(words[0].rfind('/') + 1);
  return program == "orted" &&
         std::find(words.begin(), words.end(), "--singleton-died-pipe") != words.end();
}

bool IsMpiLauncher(absl::string_view name) {
  for (const absl::string_view launcher :
       {"mpirun", "mpiexec", "orterun", "prterun", "prte", "hydra_", "srun"}) {
    if (absl::StartsWith(name, launcher)) return true;
  }
  return false;
}

void MpiWatch::OnLook(uint32_t rank, const MpiSigns& signs) {
  State& state = ranks_[rank];
  if (state.joined || signs.library.empty()) return;
  const bool again = std::exchange(state.perhaps_alone, signs.perhaps_alone);
  state.alone = state.alone || signs.alone || (again && signs.perhaps_alone);
  if (state.alone || signs.cut_off) state.library = signs.library;
}

bool MpiWatch::WantsLook(uint32_t rank) const {
  const auto found = ranks_.find(rank);
  return found == ranks_.end() || (!found->second.joined && !found->second.alone);
}

std::string MpiWatch::OnSuccess(uint32_t rank) {
  State& state = ranks_[rank];
  state.succeeded = true;
  if (!state.alone) return "";
  return absl::StrCat("rank ", rank, " ended with 0, but in an MPI world of its own (",
                      state.library, "): it never joined the job's ", world_size_, " ranks. ",
                      kRemedy);
}

std::string MpiWatch::TellAlone() {
  std::vector<uint32_t> found;
  std::string library;
  for (auto& [rank, state] : ranks_) {
    if (!state.alone || std::exchange(state.told, true)) continue;
    found.push_back(rank);
    library = state.library;
  }
  if (found.empty()) return "";
  return absl::StrCat(Name(found), found.size() == 1 ? " is" : " are each",
                      " alone in an MPI world of its own (", library, ") and not with the job's ",
                      world_size_,
                      " ranks; unless it fails before, the job will fail when it ends. ", kRemedy);
}

std::string MpiWatch::TellSuspects() const {
  std::vector<uint32_t> found;
  std::string library;
  for (const auto& [rank, state] : ranks_) {
    if (state.joined || state.alone || !state.succeeded || state.library.empty()) continue;
    found.push_back(rank);
    library = state.library;
  }
  if (found.empty()) return "";
  return absl::StrCat(Name(found), " loaded an MPI library (", library,
                      ") and did not join the job's world: if MPI was initialised, each was alone "
                      "in a world of its own. ",
                      kRemedy);
}

}  // namespace dtrain::shepherd
