// SPDX-License-Identifier: Apache-2.0
#include "launcher/faces/yaml.h"

#include <yaml.h>

#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>
#include <regex>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
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

constexpr absl::string_view kTagPrefix = "tag:yaml.org,2002:";
// Longer ones are text: no number of a configuration is, and std::regex recurses by the byte.
constexpr size_t kLongestNumber = 64;

absl::string_view View(const yaml_char_t* text, size_t size) {
  return {reinterpret_cast<const char*>(text), size};
}

absl::string_view View(const yaml_char_t* text) {
  return text == nullptr ? "" : reinterpret_cast<const char*>(text);
}

bool Matches(absl::string_view text, const std::regex& form) {
  return std::regex_match(text.begin(), text.end(), form);
}

// "1:30" is 90: numbers to base 60 are YAML 1.1's.
std::optional<Value> Sexagesimal(absl::string_view digits, bool whole) {
  double sum = 0;
  for (absl::string_view part : absl::StrSplit(digits, ':')) {
    double number = 0;
    if (!absl::SimpleAtod(part, &number)) return std::nullopt;
    sum = sum * 60 + number;
  }
  constexpr double kExact = 9007199254740992;  // 2^53
  if (!whole) return sum;
  if (sum > kExact) return std::nullopt;
  return static_cast<int64_t>(sum);
}

std::optional<Value> Whole(absl::string_view text) {
  static const std::regex kForm(
      "[-+]?0b[01_]+|[-+]?0[0-7_]+|[-+]?(0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+|"
      "[-+]?[1-9][0-9_]*(:[0-5]?[0-9])+");
  if (!Matches(text, kForm)) return std::nullopt;
  std::string digits = absl::StrReplaceAll(text, {{"_", ""}});
  const bool minus = digits[0] == '-';
  if (minus || digits[0] == '+') digits.erase(0, 1);
  if (absl::StrContains(digits, ':')) {
    std::optional<Value> value = Sexagesimal(digits, /*whole=*/true);
    if (value && minus) return -value->get<int64_t>();
    return value;
  }
  int base = 10;
  if (digits.size() > 1 && digits[0] == '0') {
    base = digits[1] == 'b' ? 2 : digits[1] == 'x' ? 16 : 8;
    digits.erase(0, base == 8 ? 1 : 2);
  }
  int64_t value = 0;
  if (minus) digits.insert(0, 1, '-');
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, value, base);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

std::optional<Value> Fraction(absl::string_view text) {
  static const std::regex kForm(
      "[-+]?[0-9][0-9_]*\\.[0-9_]*([eE][-+][0-9]+)?|\\.[0-9][0-9_]*([eE][-+][0-9]+)?|"
      "[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+\\.[0-9_]*|[-+]?\\.(inf|Inf|INF)|\\.(nan|NaN|NAN)");
  if (!Matches(text, kForm)) return std::nullopt;
  std::string digits = absl::AsciiStrToLower(absl::StrReplaceAll(text, {{"_", ""}}));
  const bool minus = digits[0] == '-';
  if (minus || digits[0] == '+') digits.erase(0, 1);
  std::optional<Value> value;
  if (digits == ".inf" || digits == ".nan") {
    value = digits == ".inf" ? HUGE_VAL : std::nan("");
  } else if (absl::StrContains(digits, ':')) {
    value = Sexagesimal(digits, /*whole=*/false);
  } else if (double number = 0; absl::SimpleAtod(digits, &number)) {
    value = number;
  }
  if (value && minus) return -value->get<double>();
  return value;
}

std::optional<Value> Truth(absl::string_view text) {
  static const std::regex kYes("yes|Yes|YES|true|True|TRUE|on|On|ON");
  static const std::regex kNo("no|No|NO|false|False|FALSE|off|Off|OFF");
  if (Matches(text, kYes)) return true;
  if (Matches(text, kNo)) return false;
  return std::nullopt;
}

// What a word without quotes is.
Value Plain(absl::string_view text) {
  if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL") return {};
  if (text.size() > kLongestNumber) return std::string(text);
  for (auto* kind : {Truth, Whole, Fraction}) {
    if (std::optional<Value> value = kind(text)) return *value;
  }
  return std::string(text);
}

class YamlReader {
 public:
  YamlReader(absl::string_view text, absl::string_view name) : name_(name) {
    good_ = yaml_parser_initialize(&parser_) != 0;
    if (!good_) return;
    yaml_parser_set_encoding(&parser_, YAML_UTF8_ENCODING);
    // It takes no null pointer, of an empty text neither.
    yaml_parser_set_input_string(
        &parser_, reinterpret_cast<const unsigned char*>(text.empty() ? "" : text.data()),
        text.size());
  }
  YamlReader(const YamlReader&) = delete;
  YamlReader& operator=(const YamlReader&) = delete;
  ~YamlReader() {
    yaml_event_delete(&event_);
    if (good_) yaml_parser_delete(&parser_);
  }

  absl::StatusOr<Value> Run() {
    if (!good_) return absl::ResourceExhaustedError(absl::StrCat(name_, ": no memory to read it"));
    Value value;
    absl::Status status = Next();
    if (status.ok()) status = Next();
    if (status.ok() && event_.type == YAML_DOCUMENT_START_EVENT) {
      status = Next();
      if (status.ok()) status = Read(0, value);
      if (status.ok()) status = Next();
      if (status.ok()) status = Next();
      if (status.ok() && event_.type != YAML_STREAM_END_EVENT) {
        return Error("a second document begins here; the file may have one");
      }
    }
    if (!status.ok()) return status;
    return value;
  }

 private:
  absl::Status At(const yaml_mark_t& mark, absl::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat(Escape(name_, 300), ":", mark.line + 1, ":", mark.column + 1, ": ", what));
  }
  absl::Status Error(absl::string_view what) const { return At(event_.start_mark, what); }

  absl::Status Next() {
    yaml_event_delete(&event_);
    if (yaml_parser_parse(&parser_, &event_) != 0) return absl::OkStatus();
    event_ = {};
    const absl::string_view problem =
        parser_.problem == nullptr ? absl::string_view("not readable") : parser_.problem;
    return At(parser_.problem_mark, absl::StrCat("not YAML: ", Escape(problem)));
  }

  // The node that begins with event_; afterwards event_ is its last.
  absl::Status Read(int depth, Value& out) {
    if (depth > kMaxYamlDepth) {
      return Error(absl::StrCat("more than ", kMaxYamlDepth, " levels within each other"));
    }
    switch (event_.type) {
      case YAML_SCALAR_EVENT:
        return ReadScalar(out);
      case YAML_SEQUENCE_START_EVENT:
        return ReadList(depth, out);
      case YAML_MAPPING_START_EVENT:
        return ReadMap(depth, out);
      case YAML_ALIAS_EVENT:
        return Error(absl::StrCat("*", Escape(View(event_.data.alias.anchor), 60),
                                  " repeats another value, which dtrain does not read: write the "
                                  "value itself"));
      default:
        return Error("a value is missing");
    }
  }

  absl::Status ReadScalar(Value& out) {
    const auto& scalar = event_.data.scalar;
    const absl::string_view text = View(scalar.value, scalar.length);
    if (absl::StrContains(text, '\0')) return Error("a NUL byte in a value");
    absl::string_view tag = View(scalar.tag);
    const bool standard = absl::ConsumePrefix(&tag, kTagPrefix);
    out = std::string(text);
    if ((tag.empty() && scalar.plain_implicit != 0) || tag == "!") out = Plain(text);
    if (tag.empty() || tag == "!" || (standard && tag == "str")) return absl::OkStatus();
    out = Plain(text);
    if (standard &&
        ((tag == "int" && out.is_number_integer()) || (tag == "float" && out.is_number_float()) ||
         (tag == "bool" && out.is_boolean()) || (tag == "null" && out.is_null()))) {
      return absl::OkStatus();
    }
    return UnknownTag(View(scalar.tag));
  }

  absl::Status UnknownTag(absl::string_view tag) const {
    return Error(absl::StrCat("the tag ", Escape(tag, 60), " is not supported here: leave it out"));
  }

  absl::Status CheckTag(absl::string_view tag, absl::string_view wanted) const {
    if (tag.empty() || tag == "!" || tag == absl::StrCat(kTagPrefix, wanted)) {
      return absl::OkStatus();
    }
    return UnknownTag(tag);
  }

  absl::Status ReadList(int depth, Value& out) {
    absl::Status status = CheckTag(View(event_.data.sequence_start.tag), "seq");
    out = Value::array();
    while (status.ok()) {
      status = Next();
      if (!status.ok() || event_.type == YAML_SEQUENCE_END_EVENT) break;
      status = Read(depth + 1, out.emplace_back());
    }
    return status;
  }

  absl::Status ReadMap(int depth, Value& out) {
    absl::Status status = CheckTag(View(event_.data.mapping_start.tag), "map");
    out = Value::object();
    while (status.ok()) {
      status = Next();
      if (!status.ok() || event_.type == YAML_MAPPING_END_EVENT) break;
      std::string key;
      status = ReadKey(out, key);
      if (status.ok()) status = Next();
      if (status.ok()) status = Read(depth + 1, out[key]);
    }
    return status;
  }

  absl::Status ReadKey(const Value& map, std::string& key) {
    if (event_.type != YAML_SCALAR_EVENT) return Error("a key must be a word");
    Value ignored;
    if (absl::Status status = ReadScalar(ignored); !status.ok()) return status;
    key = std::string(View(event_.data.scalar.value, event_.data.scalar.length));
    if (key == "<<" && event_.data.scalar.plain_implicit != 0) {
      return Error("<< merges another map, which dtrain does not read: write its keys here");
    }
    if (map.contains(key)) return Error(absl::StrCat(Escape(key, 60), " is here a second time"));
    return absl::OkStatus();
  }

  const std::string name_;
  yaml_parser_t parser_{};
  yaml_event_t event_{};
  bool good_ = false;
};

absl::Status CheckSize(absl::string_view text, absl::string_view name) {
  if (text.size() <= kMaxYamlBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(Escape(name, 300), ": ", text.size(),
                                                 " bytes are too many for a configuration file; ",
                                                 kMaxYamlBytes, " are read"));
}

bool TooDeep(const Value& value, int depth) {
  if (!value.is_structured()) return false;
  if (depth > kMaxYamlDepth) return true;
  for (const Value& each : value) {
    if (TooDeep(each, depth + 1)) return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<Value> ParseYaml(absl::string_view text, absl::string_view name) {
  if (absl::Status status = CheckSize(text, name); !status.ok()) return status;
  return YamlReader(text, name).Run();
}

absl::StatusOr<Value> ParseJson(absl::string_view text, absl::string_view name) {
  if (absl::Status status = CheckSize(text, name); !status.ok()) return status;
  Value value = Value::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) {
    return absl::InvalidArgumentError(absl::StrCat(Escape(name, 300), ": not JSON"));
  }
  if (TooDeep(value, 0)) {
    return absl::InvalidArgumentError(absl::StrCat(Escape(name, 300), ": more than ", kMaxYamlDepth,
                                                   " levels within each other"));
  }
  return value;
}

absl::StatusOr<std::string> PythonText(const Value& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_null()) return "None";
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (std::isnan(number)) return "nan";
    if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  }
  if (value.is_number()) return value.dump();
  return absl::InvalidArgumentError(value.is_array() ? "a list" : "a map");
}

}  // namespace dtrain::faces
