// SPDX-License-Identifier: Apache-2.0
#include "launcher/faces/horovod_knobs.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/text.h"

namespace dtrain::faces {
namespace {

using KnobKind = HorovodKnob::Kind;

constexpr std::array<absl::string_view, 6> kLevels = {"TRACE",   "DEBUG", "INFO",
                                                      "WARNING", "ERROR", "FATAL"};
constexpr int64_t kMebibyte = int64_t{1} << 20;
// In MiB; horovodrun multiplies it, and Horovod reads 64 bits.
constexpr int64_t kMostWhole = int64_t{1} << 40;

bool IsTruth(const KnobValues& values, absl::string_view flag) {
  const auto it = std::find_if(values.begin(), values.end(),
                               [&](const auto& each) { return each.first->flag == flag; });
  if (it == values.end()) return false;
  return it->second.is_boolean() ? it->second.get<bool>() : !it->second.get<std::string>().empty();
}

// What is wrong with the value; empty: nothing.
std::string Complaint(const HorovodKnob& knob, const Value& value) {
  switch (knob.kind) {
    case KnobKind::kSwitch:
      return value.is_boolean() ? "" : "true or false";
    case KnobKind::kText:
      if (knob.flag == "--log-level" &&
          (!value.is_string() ||
           std::find(kLevels.begin(), kLevels.end(), value.get<std::string>()) == kLevels.end())) {
        return absl::StrJoin(kLevels, ", ");
      }
      return value.is_string() ? "" : "text";
    case KnobKind::kWhole:
      if (value.is_number_integer() && value.get<int64_t>() >= 0 &&
          value.get<int64_t>() <= kMostWhole) {
        return "";
      }
      return "a whole number from 0";
    case KnobKind::kNumber: {
      const double most = knob.key == "gaussian_process_noise" ? 1 : 1e9;
      const bool good =
          value.is_number() && value.get<double>() >= 0 && value.get<double>() <= most;
      return good ? "" : absl::StrCat("a number from 0 to ", most);
    }
  }
  return "";
}

absl::Status Wrong(absl::string_view where, absl::string_view value, absl::string_view wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat(where, ": \"", Escape(value, 60), "\" is not ", wanted));
}

absl::Status CheckMap(const Value& value, absl::string_view where) {
  if (value.is_object()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(where, " must be a map of keys and values"));
}

// What the line says, before it is checked.
Value FromText(KnobKind kind, const std::string& text) {
  int64_t whole = 0;
  double number = 0;
  if (kind == KnobKind::kWhole && absl::SimpleAtoi(text, &whole)) return whole;
  if (kind == KnobKind::kNumber && absl::SimpleAtod(text, &number)) return number;
  return text;
}

const HorovodKnob* FindKnob(absl::string_view section, absl::string_view key) {
  for (const HorovodKnob& knob : HorovodKnobs()) {
    if (knob.section == section && knob.key == key) return &knob;
  }
  return nullptr;
}

}  // namespace

const std::vector<HorovodKnob>& HorovodKnobs() {
  static const auto* knobs = new std::vector<HorovodKnob>{
      {"--fusion-threshold-mb", "", "N", KnobKind::kWhole, "HOROVOD_FUSION_THRESHOLD", "params",
       "fusion_threshold_mb"},
      {"--cycle-time-ms", "", "MS", KnobKind::kNumber, "HOROVOD_CYCLE_TIME", "params",
       "cycle_time_ms"},
      {"--cache-capacity", "", "N", KnobKind::kWhole, "HOROVOD_CACHE_CAPACITY", "params",
       "cache_capacity"},
      {"--hierarchical-allreduce", "--no-hierarchical-allreduce", "", KnobKind::kSwitch,
       "HOROVOD_HIERARCHICAL_ALLREDUCE", "params", "hierarchical_allreduce"},
      {"--hierarchical-allgather", "--no-hierarchical-allgather", "", KnobKind::kSwitch,
       "HOROVOD_HIERARCHICAL_ALLGATHER", "params", "hierarchical_allgather"},
      {"--torus-allreduce", "--no-torus-allreduce", "", KnobKind::kSwitch,
       "HOROVOD_TORUS_ALLREDUCE", "params", "torus_allreduce"},
      {"--autotune", "--no-autotune", "", KnobKind::kSwitch, "HOROVOD_AUTOTUNE", "autotune",
       "enabled"},
      {"--autotune-log-file", "", "FILE", KnobKind::kText, "HOROVOD_AUTOTUNE_LOG", "autotune",
       "log_file"},
      {"--autotune-warmup-samples", "", "N", KnobKind::kWhole, "HOROVOD_AUTOTUNE_WARMUP_SAMPLES",
       "autotune", "warmup_samples"},
      {"--autotune-steps-per-sample", "", "N", KnobKind::kWhole,
       "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", "autotune", "steps_per_sample"},
      {"--autotune-bayes-opt-max-samples", "", "N", KnobKind::kWhole,
       "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", "autotune", "bayes_opt_max_samples"},
      {"--autotune-gaussian-process-noise", "", "X", KnobKind::kNumber,
       "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", "autotune", "gaussian_process_noise"},
      {"--timeline-filename", "", "FILE", KnobKind::kText, "HOROVOD_TIMELINE", "timeline",
       "filename"},
      {"--timeline-mark-cycles", "--no-timeline-mark-cycles", "", KnobKind::kSwitch,
       "HOROVOD_TIMELINE_MARK_CYCLES", "timeline", "mark_cycles"},
      {"--no-stall-check", "--stall-check", "", KnobKind::kSwitch, "HOROVOD_STALL_CHECK_DISABLE",
       "stall_check", "enabled", true},
      {"--stall-check-warning-time-seconds", "", "S", KnobKind::kWhole,
       "HOROVOD_STALL_CHECK_TIME_SECONDS", "stall_check", "warning_time_seconds"},
      {"--stall-check-shutdown-time-seconds", "", "S", KnobKind::kWhole,
       "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "stall_check", "shutdown_time_seconds"},
      {"--mpi-threads-disable", "--no-mpi-threads-disable", "", KnobKind::kSwitch,
       "HOROVOD_MPI_THREADS_DISABLE", "library_options", "mpi_threads_disable"},
      {"--num-nccl-streams", "", "N", KnobKind::kWhole, "HOROVOD_NUM_NCCL_STREAMS",
       "library_options", "num_nccl_streams"},
      {"--thread-affinity", "", "N", KnobKind::kWhole, "HOROVOD_THREAD_AFFINITY", "library_options",
       "thread_affinity"},
      {"--gloo-timeout-seconds", "", "S", KnobKind::kWhole, "HOROVOD_GLOO_TIMEOUT_SECONDS",
       "library_options", "gloo_timeout_seconds"},
      {"--log-level", "", "LEVEL", KnobKind::kText, "HOROVOD_LOG_LEVEL", "logging", "level"},
      {"--log-without-timestamp,--log-hide-timestamp",
       "--log-with-timestamp,--no-log-hide-timestamp", "", KnobKind::kSwitch,
       "HOROVOD_LOG_HIDE_TIME", "logging", "with_timestamp", true},
  };
  return *knobs;
}

std::vector<FaceFlag> HorovodKnobFlags() {
  static auto* texts = new std::deque<std::string>;  // FaceFlag borrows
  std::vector<FaceFlag> flags;
  for (const HorovodKnob& knob : HorovodKnobs()) {
    const bool is_switch = knob.kind == KnobKind::kSwitch;
    texts->push_back(absl::StrCat("sets ", knob.variable, is_switch ? "=1" : ""));
    flags.push_back({knob.flag, knob.values, FaceFlag::Becomes::kOwn, "", texts->back()});
    if (!is_switch) continue;
    texts->push_back(absl::StrCat("sets ", knob.variable, "=0"));
    flags.push_back({knob.off, "", FaceFlag::Becomes::kOwn, "", texts->back()});
  }
  return flags;
}

absl::Status TakeKnobs(const FaceWords& words, KnobValues& values) {
  for (const Mention& mention : words.mentions) {
    if (mention.flag == nullptr) continue;
    const absl::string_view names = mention.flag->names;
    for (const HorovodKnob& knob : HorovodKnobs()) {
      if (names != knob.flag && (knob.off.empty() || names != knob.off)) continue;
      if (knob.kind == KnobKind::kSwitch) {
        values[&knob] = names == knob.flag;
        continue;
      }
      const Value value = FromText(knob.kind, mention.values.back());
      if (const std::string wanted = Complaint(knob, value); !wanted.empty()) {
        return Wrong(Escape(mention.spelled, 80), mention.values.back(), wanted);
      }
      values[&knob] = value;
    }
  }
  return absl::OkStatus();
}

absl::Status TakeKnobs(const Value& file, absl::string_view name, KnobValues& values,
                       std::vector<std::string>& unknown) {
  const std::string where = Escape(name, 300);
  if (absl::Status status = CheckMap(file, where); !status.ok()) return status;
  for (const auto& [section, keys] : file.items()) {
    const bool known =
        std::any_of(HorovodKnobs().begin(), HorovodKnobs().end(),
                    [&section = section](const auto& knob) { return knob.section == section; });
    if (!known) {
      if (section != "controller") unknown.push_back(Escape(section, 60));
      continue;
    }
    if (keys.is_null()) continue;
    const std::string inside = absl::StrCat(where, ": ", section);
    if (absl::Status status = CheckMap(keys, inside); !status.ok()) return status;
    for (const auto& [key, said] : keys.items()) {
      const HorovodKnob* knob = FindKnob(section, key);
      if (knob == nullptr) unknown.push_back(absl::StrCat(section, ".", Escape(key, 60)));
      if (knob == nullptr || said.is_null()) continue;
      if (const std::string wanted = Complaint(*knob, said); !wanted.empty()) {
        return Wrong(absl::StrCat(inside, ".", key), PythonText(said).value_or("?"), wanted);
      }
      values.try_emplace(knob, knob->inverse ? Value(!said.get<bool>()) : Value(said));
    }
  }
  return absl::OkStatus();
}

std::vector<std::pair<std::string, std::string>> HorovodVariables(const KnobValues& values) {
  std::vector<std::pair<std::string, std::string>> variables;
  for (const HorovodKnob& knob : HorovodKnobs()) {
    const auto it = values.find(&knob);
    if (it == values.end()) continue;
    // What tunes a thing that is off is not said, as there.
    if (knob.section == "autotune" && !IsTruth(values, "--autotune")) continue;
    if (knob.section == "timeline" && !IsTruth(values, "--timeline-filename")) continue;
    std::string text = PythonText(it->second).value_or("");
    if (knob.kind == KnobKind::kSwitch) text = it->second.get<bool>() ? "1" : "0";
    if (knob.key == "fusion_threshold_mb") {
      text = absl::StrCat(it->second.get<int64_t>() * kMebibyte);
    }
    variables.emplace_back(std::string(knob.variable), text);
  }
  return variables;
}

}  // namespace dtrain::faces
