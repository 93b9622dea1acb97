// SPDX-License-Identifier: Apache-2.0
#include "agent/containers/environment.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/types/span.h"
#include "common/base/env_names.h"
#include "common/base/text.h"

namespace dtrain::containers {
namespace {

// Names, or prefixes when they end in '*'. What the runtime's program reads itself, and needs as
// the node has it.
constexpr absl::string_view kOfClient[] = {
    "APPTAINER*",   "BUILDAH_*",  "CONTAINERS_*", "CONTAINER_*",     "DBUS_*", "DOCKER_*",
    "ENROOT_*",     "HOME",       "LOGNAME",      "LD_LIBRARY_PATH", "PATH",   "REGISTRY_AUTH_FILE",
    "SINGULARITY*", "SSL_CERT_*", "STORAGE_*",    "TMPDIR",          "USER",   "XDG_*",
};

// Read by its client for the registry, and by programs inside.
constexpr absl::string_view kProxies[] = {"ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
                                          "all_proxy", "http_proxy", "https_proxy", "no_proxy"};

// What else names places on the node that the image does not have, or has elsewhere.
constexpr absl::string_view kOfFiles[] = {
    "BASH_ENV",
    "CONDA_*",
    "CPATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "CURL_CA_BUNDLE",
    "ENV",
    "INFOPATH",
    "LD_AUDIT",
    "LD_PRELOAD",
    "LIBRARY_PATH",
    "LMOD_*",
    "LOADEDMODULES",
    "MANPATH",
    "MODULE*",
    "PERL5LIB",
    "PKG_CONFIG_PATH",
    "PYENV_*",
    "PYTHONHOME",
    "PYTHONPATH",
    "PYTHONSTARTUP",
    "PYTHONUSERBASE",
    "REQUESTS_CA_BUNDLE",
    "VIRTUAL_ENV*",
    "_CE_*",
    "_LMFILES_",
};

bool Matches(absl::Span<const absl::string_view> patterns, absl::string_view name) {
  return std::any_of(patterns.begin(), patterns.end(), [name](absl::string_view pattern) {
    return pattern.back() == '*' ? absl::StartsWith(name, pattern.substr(0, pattern.size() - 1))
                                 : name == pattern;
  });
}

bool IsOfClient(absl::string_view name) { return Matches(kOfClient, name); }

// Others, of an exported shell function for example, mean something else to the runtimes.
// apptainer's own shell takes no dots.
bool IsPlain(Runtime runtime, absl::string_view name) {
  const bool dots = runtime != Runtime::kApptainer;
  return !name.empty() && !absl::ascii_isdigit(name[0]) &&
         std::all_of(name.begin(), name.end(), [dots](char c) {
           return absl::ascii_isalnum(c) || c == '_' || (dots && c == '.');
         });
}

std::map<std::string, std::string> Split(const std::vector<std::string>& entries) {
  std::map<std::string, std::string> out;
  for (const std::string& entry : entries) {
    const size_t equals = entry.find('=');
    if (equals != 0 && equals != std::string::npos) {
      out[entry.substr(0, equals)] = entry.substr(equals + 1);
    }
  }
  return out;
}

std::vector<std::string> Join(const std::map<std::string, std::string>& variables) {
  std::vector<std::string> out;
  for (const auto& [name, value] : variables) out.push_back(absl::StrCat(name, "=", value));
  return out;
}

std::map<std::string, std::string> OfClient(const std::vector<std::string>& node) {
  std::map<std::string, std::string> out = Split(node);
  std::erase_if(out, [](const auto& each) {
    return !IsOfClient(each.first) && !Matches(kProxies, each.first);
  });
  out.try_emplace("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
  return out;
}

// apptainer passes on only what has its prefix (--cleanenv). Singularity, which we cannot tell
// --no-eval, puts the value between double quotes in a shell script and escapes only those.
void PassByPrefix(const Chosen& chosen, const std::string& name, const std::string& value,
                  std::map<std::string, std::string>& client) {
  std::string& passed = client[absl::StrCat(absl::AsciiStrToUpper(chosen.name), "ENV_", name)];
  passed = chosen.name == "apptainer"
               ? value
               : absl::StrReplaceAll(value, {{"\\", "\\\\"}, {"$", "\\$"}, {"`", "\\`"}});
}

// The runtime's program has that variable for itself, so that it must come another way.
absl::Status PassBeside(const Chosen& chosen, const std::string& name, const std::string& value,
                        std::map<std::string, std::string>& client, std::string& file) {
  const bool is_apptainer = chosen.runtime == Runtime::kApptainer;
  // It sets HOME itself, and says nothing of one that has its prefix.
  if (is_apptainer && name != "HOME") {
    PassByPrefix(chosen, name, value, client);
    return absl::OkStatus();
  }
  const bool takes_file = !is_apptainer && chosen.runtime != Runtime::kEnroot;
  if (!takes_file || absl::StrContains(value, '\n')) {
    return absl::InvalidArgumentError(absl::StrCat(
        "pass the variable ", Escape(name), " into a container: ", chosen.name, " itself ",
        is_apptainer ? "sets it" : "reads it", takes_file ? ", and its value has lines" : "",
        "; set it in the program's command instead (env ", Escape(name), "=… COMMAND)"));
  }
  absl::StrAppend(&file, name, "=", value, "\n");
  return absl::OkStatus();
}

}  // namespace

bool IsOfHost(absl::string_view name) {
  if (name == "PWD") return false;  // its folder is there, by the same name
  return IsHostBound(name) || IsOfClient(name) || Matches(kOfFiles, name);
}

absl::StatusOr<Carried> Carry(const Chosen& chosen, const std::vector<std::string>& worker,
                              const std::vector<std::string>& node,
                              const std::set<std::string>& given) {
  Carried out;
  std::map<std::string, std::string> client = OfClient(node);
  for (const auto& [name, value] : Split(worker)) {
    const bool wanted = !IsOfHost(name) || given.contains(name);
    if (!wanted || !IsPlain(chosen.runtime, name)) continue;
    if (IsOfClient(name)) {
      absl::Status passed = PassBeside(chosen, name, value, client, out.file);
      if (!passed.ok()) return passed;
      continue;
    }
    if (chosen.runtime == Runtime::kEnroot && absl::StrContains(value, '\n')) {
      if (!given.contains(name)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("pass the variable ", Escape(name),
                       " into a container: enroot takes no value that has lines"));
    }
    if (chosen.runtime == Runtime::kApptainer) PassByPrefix(chosen, name, value, client);
    client[name] = value;  // for apptainer, too: by the job's marks it is found
    out.names.push_back(name);
  }
  out.client = Join(client);
  return out;
}

std::vector<std::string> ClientEnvironment(const std::vector<std::string>& node) {
  return Join(OfClient(node));
}

std::vector<std::string> GpuVariables(Runtime runtime, const std::vector<std::string>& uuids) {
  if (runtime != Runtime::kEnroot || uuids.empty()) return {};
  return {absl::StrCat("NVIDIA_VISIBLE_DEVICES=", absl::StrJoin(uuids, ",")),
          "NVIDIA_DRIVER_CAPABILITIES=compute,utility"};
}

std::vector<std::string> NamespaceVariables(Runtime runtime) {
  if (runtime != Runtime::kPodman) return {};
  // Open MPI (opal/shmem) takes a segment whose creator has its own pid for its own, and crashes.
  return {"OMPI_MCA_btl=^vader,sm"};
}

}  // namespace dtrain::containers
