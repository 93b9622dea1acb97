// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/result.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace dtrain::gpu_check {
namespace {

constexpr size_t kMostReasons = 10;

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      quoted += ' ';
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::string List(const std::vector<std::string>& texts) {
  std::string list = "[";
  for (const std::string& text : texts) list += (list.size() > 1 ? ", " : "") + Quoted(text);
  return list + "]";
}

int NumberOf(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

}  // namespace

void Result::Miss(const std::string& why) {
  if (missed_.size() < kMostReasons) missed_.push_back(why);
}

void Result::CouldNot(const std::string& why) { could_not_.push_back(why); }

void Result::Number(const std::string& name, double value) {
  char text[64] = "null";
  if (std::isfinite(value)) std::snprintf(text, sizeof(text), "%.9g", value);
  fields_[name] = text;
}

void Result::Text(const std::string& name, const std::string& value) {
  fields_[name] = Quoted(value);
}

int Result::Print() const {
  std::string line = "gpu-check {\"part\": " + Quoted(part_) +
                     ", \"rank\": " + std::to_string(RankInEnvironment()) +
                     ", \"missed\": " + List(missed_) + ", \"could_not\": " + List(could_not_);
  for (const auto& [name, value] : fields_) line += ", " + Quoted(name) + ": " + value;
  // One write: ranks share a pipe.
  line += "}\n";
  std::fputs(line.c_str(), stdout);
  std::fflush(stdout);
  return 0;
}

void Result::Give() const {
  Print();
  _exit(0);
}

int RankInEnvironment() { return NumberOf("RANK", 0); }
int RanksInEnvironment() { return NumberOf("WORLD_SIZE", 1); }

}  // namespace dtrain::gpu_check
