// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/environment.h"

#include <charconv>
#include <cstring>
#include <string_view>
#include <utility>

namespace dtrain::runtime {
namespace {

using Getter = std::function<const char*(const char*)>;

Error Bad(const char* name, const char* value, const char* expected) {
  return {DTRAIN_ERROR_ENVIRONMENT,
          std::string(name) + "=" + Printable(value) + " is not " + expected};
}

// `value` stays as it is when the variable is absent.
MaybeError ReadInt(const Getter& get, const char* name, int lowest, int& value) {
  const char* text = get(name);
  if (text == nullptr) return std::nullopt;
  const char* end = text + std::strlen(text);
  int number = 0;
  const auto [rest, error] = std::from_chars(text, end, number);
  if (error != std::errc() || rest != end || number < lowest) {
    return Bad(name, text, lowest == 0 ? "a number from 0" : "a number from 1");
  }
  value = number;
  return std::nullopt;
}

// A config value in milliseconds wins over a variable in seconds.
MaybeError ReadTimeout(const Getter& get, const char* name, int64_t config_ms,
                       std::chrono::milliseconds& value) {
  constexpr int64_t kLongestMs = 30LL * 24 * 3600 * 1000;  // beyond that, additions could overflow
  if (config_ms < 0 || config_ms > kLongestMs) {
    return Error{DTRAIN_ERROR_INVALID_ARGUMENT,
                 "a timeout of " + std::to_string(config_ms) +
                     " ms in dtrain_config is not between 0 and 30 days"};
  }
  if (config_ms > 0) {
    value = std::chrono::milliseconds(config_ms);
    return std::nullopt;
  }
  const char* text = get(name);
  if (text == nullptr) return std::nullopt;
  const char* end = text + std::strlen(text);
  double seconds = 0;
  // from_chars, because strtod follows the locale of the program that we live in.
  const auto [rest, error] = std::from_chars(text, end, seconds);
  const bool sane = seconds >= 0.001 && seconds <= static_cast<double>(kLongestMs) / 1000;
  if (error != std::errc() || rest != end || !sane) {
    return Bad(name, text, "a number of seconds between 0.001 and 2592000");
  }
  value = std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
  return std::nullopt;
}

// The first of two names that is set, and its value; nullptr when neither is.
std::pair<const char*, const char*> FirstSet(const Getter& get, const char* ours,
                                             const char* horovods) {
  if (const char* text = get(ours)) return {ours, text};
  return {horovods, get(horovods)};
}

MaybeError ReadFusion(const Getter& get, Environment& env) {
  if (const auto [name, text] =
          FirstSet(get, "DTRAIN_FUSION_THRESHOLD", "HOROVOD_FUSION_THRESHOLD");
      text != nullptr) {
    constexpr uint64_t kMost = uint64_t{1} << 40;
    uint64_t bytes = 0;
    const char* end = text + std::strlen(text);
    const auto [rest, error] = std::from_chars(text, end, bytes);
    if (error != std::errc() || rest != end || bytes > kMost) {
      return Bad(name, text, "a number of bytes between 0 and 2^40");
    }
    env.fusion_threshold = bytes;
  }
  if (const auto [name, text] = FirstSet(get, "DTRAIN_CYCLE_TIME", "HOROVOD_CYCLE_TIME");
      text != nullptr) {
    constexpr double kMostMs = 10000;
    double ms = 0;
    const char* end = text + std::strlen(text);
    const auto [rest, error] = std::from_chars(text, end, ms);
    if (error != std::errc() || rest != end || !(ms >= 0 && ms <= kMostMs)) {
      return Bad(name, text, "a number of milliseconds between 0 and 10000");
    }
    env.cycle_time = std::chrono::microseconds(static_cast<int64_t>(ms * 1000));
  }
  return std::nullopt;
}

MaybeError ReadBackend(const Getter& get, BackendChoice& choice) {
  const char* text = get("DTRAIN_BACKEND");
  if (text == nullptr) return std::nullopt;
  const std::string_view name = text;
  if (name == "auto") {
    choice = BackendChoice::kAuto;
  } else if (name == "cpu") {
    choice = BackendChoice::kCpu;
  } else if (name == "nccl") {
    choice = BackendChoice::kNccl;
  } else {
    return Bad("DTRAIN_BACKEND", text, "auto, cpu or nccl");
  }
  return std::nullopt;
}

// A worker of mpirun or torchrun that took itself for a job of one rank would train alone and
// report success, so that case is refused.
MaybeError RefuseForeignLauncher(const Getter& get) {
  for (const char* name : {"PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "WORLD_SIZE"}) {
    int size = 1;
    if (MaybeError error = ReadInt(get, name, 1, size)) return error;
    if (size == 1) continue;
    return Error{
        DTRAIN_ERROR_ENVIRONMENT,
        std::string(name) + "=" + std::to_string(size) +
            " says that this is one of several workers, but PMI_FD is not set, so the "
            "others cannot be found; start the job with 'dtrain launch' or 'mpiexec.hydra', "
            "or unset " +
            name + " to run alone"};
  }
  return std::nullopt;
}

}  // namespace

Result<Environment> ReadEnvironment(const dtrain_config& config, const Getter& get) {
  Environment env;
  if (MaybeError e =
          ReadTimeout(get, "DTRAIN_TIMEOUT_SECONDS", config.init_timeout_ms, env.init_timeout)) {
    return *e;
  }
  if (MaybeError e = ReadTimeout(get, "DTRAIN_COLLECTIVE_TIMEOUT_SECONDS",
                                 config.collective_timeout_ms, env.collective_timeout)) {
    return *e;
  }
  if (MaybeError e = ReadFusion(get, env)) return *e;
  if (MaybeError e = ReadBackend(get, env.backend)) return *e;
  // What the page is not fit for is ignored, and so is a number that is none.
  if (ReadInt(get, "DTRAIN_PAGE_FD", 0, env.page_fd)) env.page_fd = -1;
  const char* address = config.address != nullptr ? config.address : get("DTRAIN_ADDRESS");
  if (address != nullptr) env.address = address;
  if (const char* names = get("GLOO_SOCKET_IFNAME")) env.interfaces = names;

  if (get("PMI_FD") == nullptr) {
    if (MaybeError e = RefuseForeignLauncher(get)) return *e;
    return env;
  }
  if (MaybeError e = ReadInt(get, "PMI_FD", 0, env.pmi_fd)) return *e;
  env.rank = -1;
  env.size = -1;
  if (MaybeError e = ReadInt(get, "PMI_RANK", 0, env.rank)) return *e;
  if (MaybeError e = ReadInt(get, "PMI_SIZE", 1, env.size)) return *e;
  if (env.rank < 0 || env.size < 0 || env.rank >= env.size) {
    return Error{DTRAIN_ERROR_ENVIRONMENT,
                 "PMI_FD is set, but PMI_RANK and PMI_SIZE do not hold a rank and a larger size; "
                 "was part of the launcher's environment removed?"};
  }
  return env;
}

}  // namespace dtrain::runtime
