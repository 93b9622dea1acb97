// SPDX-License-Identifier: Apache-2.0
#include "launcher/faces/accelerate_settings.h"

#include <algorithm>
#include <cstdint>
#include <deque>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/text.h"

namespace dtrain::faces {
namespace {

using Kind = AccelerateSetting::Kind;
using Part = AccelerateSetting::Part;

constexpr absl::string_view kOverride = "fp8_override_linear_precision";

absl::StatusOr<bool> ParseTruth(absl::string_view text) {
  const std::string word = absl::AsciiStrToLower(text);
  for (absl::string_view yes : {"y", "yes", "t", "true", "on", "1"}) {
    if (word == yes) return true;
  }
  for (absl::string_view no : {"n", "no", "f", "false", "off", "0"}) {
    if (word == no) return false;
  }
  return absl::InvalidArgumentError("yes or no");
}

// An error is what the text should be.
absl::StatusOr<Value> FromText(const AccelerateSetting& setting, const std::string& text) {
  switch (setting.kind) {
    case Kind::kWhole: {
      int64_t whole = 0;
      if (absl::SimpleAtoi(text, &whole)) return whole;
      return absl::InvalidArgumentError("a whole number");
    }
    case Kind::kNumber: {
      double number = 0;
      if (absl::SimpleAtod(text, &number)) return number;
      return absl::InvalidArgumentError("a number");
    }
    case Kind::kAnyText:
      return !text.empty();
    case Kind::kDigit: {
      const absl::StatusOr<bool> truth = ParseTruth(text);
      if (!truth.ok()) return truth.status();
      return *truth ? 1 : 0;
    }
    default:
      break;
  }
  if (setting.key == kOverride) {
    Value list = Value::array();
    for (absl::string_view part : absl::StrSplit(text, ',')) {
      const absl::StatusOr<bool> truth = ParseTruth(part);
      if (truth.ok()) list.push_back(*truth ? 1 : 0);
    }
    if (list.size() == 3) return list;
    return absl::InvalidArgumentError("three times yes or no: yes,no,no");
  }
  const std::vector<absl::string_view> choices = absl::StrSplit(setting.values, '|');
  // "all|N,N" ends in a form, not in a word.
  if (choices.size() > 1 && !absl::StrContains(setting.values, ',') &&
      std::find(choices.begin(), choices.end(), text) == choices.end()) {
    return absl::InvalidArgumentError(absl::StrReplaceAll(setting.values, {{"|", ", "}}));
  }
  return text;
}

absl::Status AddVariable(absl::string_view key, const Value& value, absl::string_view name,
                         bool lower, Variables& out) {
  absl::StatusOr<std::string> text = PythonText(value);
  if (!text.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(Escape(key, 60), " is ", text.status().message(),
                                                   ", and ", Escape(name, 60),
                                                   " holds text: write the value as text"));
  }
  if (lower) absl::AsciiStrToLower(&*text);
  out.emplace_back(std::string(name), *std::move(text));
  return absl::OkStatus();
}

// Any key that begins so is passed on, as accelerate does.
absl::Status AddFp8(const AccelerateValues& values, Variables& out) {
  for (auto it = values.of.lower_bound("fp8_");
       it != values.of.end() && absl::StartsWith(it->first, "fp8_"); ++it) {
    const auto& [key, value] = *it;
    if (value.is_null() || key == kOverride) continue;
    const std::string name = absl::StrCat("ACCELERATE_", absl::AsciiStrToUpper(key));
    if (absl::Status status = AddVariable(key, value, name, false, out); !status.ok()) {
      return status;
    }
  }
  const Value& three = values.At(kOverride);
  if (!three.is_null() && (!three.is_array() || three.size() != 3)) {
    return absl::InvalidArgumentError(absl::StrCat(kOverride, " must be a list of three"));
  }
  size_t i = 0;
  for (absl::string_view end : {"FPROP", "DGRAD", "WGRAD"}) {
    const Value value = three.is_null() ? Value(false) : three[i++];
    absl::Status status =
        AddVariable(kOverride, value, absl::StrCat("ACCELERATE_FP8_OVERRIDE_", end), false, out);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// Some of them are only set where they are used.
bool IsUsed(const AccelerateSetting& setting, const AccelerateValues& values) {
  const auto above_one = [&](absl::string_view key) {
    const Value& size = values.At(key);
    return size.is_number() && size.get<double>() > 1;
  };
  if (setting.key == "parallelism_config_cp_comm_strategy") {
    return above_one("parallelism_config_cp_size");
  }
  if (absl::StartsWith(setting.key, "parallelism_config_sp_seq") ||
      setting.key == "parallelism_config_sp_attn_implementation") {
    return above_one("parallelism_config_sp_size");
  }
  return true;
}

}  // namespace

const AccelerateSetting* FindSetting(absl::string_view key) {
  const std::vector<AccelerateSetting>& all = AccelerateSettings();
  const auto it = std::find_if(all.begin(), all.end(),
                               [&](const AccelerateSetting& each) { return each.key == key; });
  return it == all.end() ? nullptr : &*it;
}

std::vector<FaceFlag> AccelerateSettingFlags() {
  static auto* texts = new std::deque<std::string>;  // FaceFlag borrows
  std::vector<FaceFlag> flags;
  for (const AccelerateSetting& setting : AccelerateSettings()) {
    if (setting.kind == Kind::kFileOnly) continue;
    texts->push_back(absl::StrCat("--", absl::StrReplaceAll(setting.key, {{"_", "-"}})));
    const absl::string_view name = texts->back();
    texts->push_back(absl::StrCat("sets ", setting.variable));
    flags.push_back({name, setting.values, FaceFlag::Becomes::kOwn, "",
                     setting.help.empty() ? absl::string_view(texts->back()) : setting.help});
  }
  return flags;
}

const Value& AccelerateValues::At(absl::string_view key) const {
  static const auto* null = new Value;
  const auto it = of.find(key);
  return it == of.end() ? *null : it->second;
}

bool AccelerateValues::IsTruth(absl::string_view key) const {
  const Value& value = At(key);
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number()) return value.get<double>() != 0;
  if (value.is_string()) return !value.get<std::string>().empty();
  return !value.empty();
}

std::string AccelerateValues::Text(absl::string_view key) const {
  const Value& value = At(key);
  return value.is_null() ? "" : PythonText(value).value_or("");
}

absl::StatusOr<AccelerateValues> TakeSettings(const FaceWords& words) {
  AccelerateValues values;
  for (const AccelerateSetting& setting : AccelerateSettings()) {
    const absl::StatusOr<Value> otherwise = ParseYaml(setting.otherwise, setting.key);
    if (!otherwise.ok()) return otherwise.status();
    if (!otherwise->is_null()) values.of[std::string(setting.key)] = *otherwise;
  }
  for (const Mention& mention : words.mentions) {
    if (mention.flag == nullptr) continue;
    const std::string key = absl::StrReplaceAll(NameOf(*mention.flag), {{"-", "_"}});
    const AccelerateSetting* setting = FindSetting(key);
    if (setting == nullptr) continue;
    values.given.insert(key);
    if (setting->kind == Kind::kSwitch) {
      values.of[key] = true;
      continue;
    }
    absl::StatusOr<Value> value = FromText(*setting, mention.values.back());
    if (!value.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(Escape(mention.spelled, 80), ": \"",
                                                     Escape(mention.values.back(), 60),
                                                     "\" is not ", value.status().message()));
    }
    values.of[key] = *std::move(value);
  }
  return values;
}

absl::Status AddPart(Part part, const AccelerateValues& values, Variables& out) {
  if (part == Part::kFp8) return AddFp8(values, out);
  for (const AccelerateSetting& setting : AccelerateSettings()) {
    if (setting.part != part || !IsUsed(setting, values)) continue;
    const Value& value = values.At(setting.key);
    if (value.is_null()) continue;
    absl::Status status = AddVariable(setting.key, value, setting.variable, setting.lower, out);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace dtrain::faces
