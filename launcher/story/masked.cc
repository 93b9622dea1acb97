// SPDX-License-Identifier: Apache-2.0
#include "launcher/story/masked.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace dtrain::story {
namespace {

constexpr absl::string_view kMask = "***";

// Settings of libraries and systems.
constexpr absl::string_view kHarmlessBeginnings[] = {
    "BLIS_",         "CUBLAS_",        "CUDA_",   "CUDNN_", "DTRAIN_",   "FI_",   "GLOO_",
    "GOMP_",         "HIP_",           "HSA_",    "I_MPI_", "JAX_",      "KMP_",  "LC_",
    "LIGHTNING_",    "MALLOC_",        "MKL_",    "MPICH_", "MPIR_",     "NCCL_", "NUMEXPR_",
    "NVIDIA_",       "NVSHMEM_",       "OMPI_",   "OMP_",   "OPENBLAS_", "PMIX_", "PMI_",
    "PRTE_",         "PYTORCH_",       "RCCL_",   "ROCR_",  "SLURM_",    "TF_",   "TORCH_",
    "TORCHELASTIC_", "TORCHINDUCTOR_", "TRITON_", "UCC_",   "UCX_",      "XLA_",  "HOROVOD_",
    "ACCELERATE_",   "DEEPSPEED_",     "MASTER_"};
constexpr absl::string_view kHarmless[] = {"CC",
                                           "CUDA_HOME",
                                           "CXX",
                                           "DEBUG",
                                           "EDITOR",
                                           "HF_HOME",
                                           "HF_HUB_OFFLINE",
                                           "HOME",
                                           "LANG",
                                           "LD_LIBRARY_PATH",
                                           "LD_PRELOAD",
                                           "LOCAL_RANK",
                                           "LOGNAME",
                                           "PATH",
                                           "PYTHONFAULTHANDLER",
                                           "PYTHONHASHSEED",
                                           "PYTHONPATH",
                                           "PYTHONUNBUFFERED",
                                           "RANK",
                                           "SHELL",
                                           "TERM",
                                           "TMPDIR",
                                           "TOKENIZERS_PARALLELISM",
                                           "TRANSFORMERS_OFFLINE",
                                           "TZ",
                                           "USER",
                                           "VIRTUAL_ENV",
                                           "WANDB_MODE",
                                           "WORLD_SIZE",
                                           "XDG_CACHE_HOME"};
constexpr absl::string_view kSecretParts[] = {"AUTH", "CRED",  "KEY",    "PASS",
                                              "PRIV", "TOKEN", "SECRET", "EXPORT"};

bool IsHarmless(absl::string_view name) {
  if (std::find(std::begin(kHarmless), std::end(kHarmless), name) != std::end(kHarmless)) {
    return true;
  }
  const std::string upper = absl::AsciiStrToUpper(name);
  const auto has = [&upper](absl::string_view part) { return absl::StrContains(upper, part); };
  if (std::any_of(std::begin(kSecretParts), std::end(kSecretParts), has)) return false;
  const auto begins = [name](absl::string_view part) { return absl::StartsWith(name, part); };
  return std::any_of(std::begin(kHarmlessBeginnings), std::end(kHarmlessBeginnings), begins);
}

// NAME=VALUE, from `from` on.
void MaskFrom(size_t from, std::string& word) {
  const size_t equals = word.find('=', from);
  if (equals == std::string::npos) return;
  const std::string name = word.substr(from, equals - from);
  const auto is_of_name = [](unsigned char c) { return absl::ascii_isalnum(c) || c == '_'; };
  if (name.empty() || !std::all_of(name.begin(), name.end(), is_of_name)) return;
  word = absl::StrCat(word.substr(0, equals + 1), MaskedValue(name, word.substr(equals + 1)));
}

// Of MPICH's mpiexec: -env NAME VALUE.
bool IsHydraEnv(absl::string_view word) {
  return absl::ConsumePrefix(&word, "-") &&
         (word == "env" || word == "genv" || word == "-env" || word == "-genv");
}

}  // namespace

std::string MaskedValue(absl::string_view name, absl::string_view value) {
  return std::string(value.empty() || IsHarmless(name) ? value : kMask);
}

// Not by the flags of this version: the words may be another launcher's, or of an older version.
// In the program's own arguments -x A=B is masked, too.
std::vector<std::string> MaskedWords(std::vector<std::string> words) {
  const bool is_mpi = !words.empty() && (words[0] == "mpirun" || words[0] == "mpiexec");
  for (size_t i = 0; i < words.size(); ++i) {
    std::string& word = words[i];
    if (is_mpi && IsHydraEnv(word) && i + 2 < words.size()) {
      words[i + 2] = MaskedValue(words[i + 1], words[i + 2]);
      i += 2;
      continue;
    }
    constexpr absl::string_view kLong = "--export=";
    if (absl::StartsWith(word, kLong)) {
      MaskFrom(kLong.size(), word);
      continue;
    }
    const bool is_short = word.size() > 1 && word[0] == '-' && word[1] != '-';
    const size_t x = is_short ? word.find('x') : std::string::npos;
    const bool takes_next = word == "--export" || (is_short && x + 1 == word.size());
    if (takes_next && i + 1 < words.size()) {
      MaskFrom(0, words[++i]);
    } else if (x != std::string::npos) {
      MaskFrom(x + 1 < word.size() && word[x + 1] == '=' ? x + 2 : x + 1, word);
    }
  }
  return words;
}

}  // namespace dtrain::story
