// SPDX-License-Identifier: Apache-2.0
#include "launcher/faces/yaml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace dtrain::faces {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// The document as compact JSON, or the error.
std::string Read(const std::string& text) {
  const auto value = ParseYaml(text, "F");
  if (!value.ok()) return std::string(value.status().message());
  return value->dump();
}

std::string Text(const std::string& yaml) {
  const auto value = ParseYaml(yaml, "F");
  if (!value.ok()) return std::string(value.status().message());
  return PythonText(*value).value_or("?");
}

TEST(YamlTest, MapsAndListsKeepTheirOrder) {
  EXPECT_EQ(Read("b: 1\na:\n  - x\n  - {c: d}\n"), R"({"b":1,"a":["x",{"c":"d"}]})");
  EXPECT_EQ(Read(""), "null");
  EXPECT_TRUE(ParseYaml({}, "F").ok());
  EXPECT_EQ(Read("# nothing\n---\n...\n"), "null");
  EXPECT_EQ(Read("1: x\nyes: y\n"), R"({"1":"x","yes":"y"})");
}

TEST(YamlTest, ScalarsAreThoseOfPyYaml) {
  for (const char* yes : {"yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"}) {
    EXPECT_EQ(Read(yes), "true") << yes;
  }
  for (const char* no : {"no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"}) {
    EXPECT_EQ(Read(no), "false") << no;
  }
  for (const char* null : {"~", "null", "Null", "NULL", "a:"}) {
    EXPECT_THAT(Read(null), HasSubstr("null")) << null;
  }
  for (const char* text : {"y",
                           "n",
                           "yEs",
                           "'yes'",
                           "\"no\"",
                           "'1'",
                           "08",
                           "0o7",
                           "1e8",
                           "1e-5",
                           "0,1",
                           "10.0.0.1",
                           "10.0.0.1:29500",
                           "2001-12-14",
                           "99999999999999999999",
                           "0b",
                           "'~'",
                           "!!str 1",
                           "-.5",
                           "nUll"}) {
    EXPECT_THAT(Read(text), StartsWith("\"")) << text;
  }
  EXPECT_EQ(Read("[0, -1, +2, 1_000, -0x1F, 010, +0b11, 1:30, -1:30, 190:20:30, 0_, ! 1]"),
            "[0,-1,2,1000,-31,8,3,90,-90,685230,0,1]");
  EXPECT_EQ(Read("[1.0, .5, 1., 1.5e+3, 1:30.5, 1_0.5_0, -1.5]"),
            "[1.0,0.5,1.0,1500.0,90.5,10.5,-1.5]");
  EXPECT_EQ(Read(std::string(100, '1')), absl::StrCat("\"", std::string(100, '1'), "\""));
  EXPECT_EQ(Read("[!!int 1, !!float 1.0, !!bool yes, !!null ~, !!seq [], !!map {}]"),
            "[1,1.0,true,null,[],{}]");
}

TEST(YamlTest, TextIsPythons) {
  EXPECT_EQ(Text("yes"), "True");
  EXPECT_EQ(Text("off"), "False");
  EXPECT_EQ(Text("~"), "None");
  EXPECT_EQ(Text("1.0"), "1.0");
  EXPECT_EQ(Text("0.0001"), "0.0001");
  EXPECT_EQ(Text("1.0e-5"), "1e-05");
  EXPECT_EQ(Text("1.0e+16"), "1e+16");
  EXPECT_EQ(Text(".inf"), "inf");
  EXPECT_EQ(Text("-.inf"), "-inf");
  EXPECT_EQ(Text(".nan"), "nan");
  EXPECT_EQ(Text("010"), "8");
  EXPECT_EQ(PythonText(Value::array()).status().message(), "a list");
  EXPECT_EQ(PythonText(Value::object()).status().message(), "a map");
}

TEST(YamlTest, ErrorsSayWhere) {
  EXPECT_THAT(Read("a: 1\nb: [1"), StartsWith("F:3:1: not YAML: "));
  EXPECT_THAT(Read("a: 1\n\tb: 2\n"), StartsWith("F:2:1: not YAML: "));
  EXPECT_EQ(Read("a: 1\n a: 2\nb"),
            "F:2:3: not YAML: mapping values are not allowed in this context");
  EXPECT_EQ(Read("a: 1\nb: 2\na: 3\n"), "F:3:1: a is here a second time");
  EXPECT_EQ(Read("? [a]\n: b\n"), "F:1:3: a key must be a word");
  EXPECT_EQ(Read("--- a\n--- b\n"), "F:2:1: a second document begins here; the file may have one");
  EXPECT_EQ(Read("a: \"\\0\"\n"), "F:1:4: a NUL byte in a value");
  EXPECT_EQ(Read("a: !!python/object/apply:os.system [ls]\n"),
            "F:1:4: the tag tag:yaml.org,2002:python/object/apply:os.system is not supported here: "
            "leave it out");
  EXPECT_THAT(Read("!!int x"), HasSubstr("is not supported here"));
  EXPECT_THAT(Read("!!binary aGk="), HasSubstr("is not supported here"));
  EXPECT_THAT(Read("a: \xff\xfe"), StartsWith("F:"));
}

TEST(YamlTest, WhatAFewBytesCouldMakeLargeIsNotRead) {
  EXPECT_THAT(Read("a: &a [x]\nb: [*a, *a]\n"), StartsWith("F:2:5: *a repeats another value"));
  EXPECT_THAT(Read("a: &a\n  - *a\n"), HasSubstr("repeats another value"));
  EXPECT_THAT(Read("b: {<<: {c: d}}"), HasSubstr("<< merges another map"));
  EXPECT_EQ(Read("a: &unused 1\n"), R"({"a":1})");
  EXPECT_EQ(Read(std::string(kMaxYamlDepth, '[') + std::string(kMaxYamlDepth, ']')),
            std::string(kMaxYamlDepth, '[') + std::string(kMaxYamlDepth, ']'));
  EXPECT_THAT(Read(std::string(50000, '[')), HasSubstr("levels within each other"));
  EXPECT_THAT(Read(std::string(50000, '{')), StartsWith("F:"));
  EXPECT_THAT(Read(std::string(kMaxYamlBytes + 1, ' ')), HasSubstr("too many"));
}

TEST(YamlTest, JsonHasTheSameLimits) {
  EXPECT_EQ(ParseJson(R"({"b": true, "a": [1.0, null]})", "F")->dump(),
            R"({"b":true,"a":[1.0,null]})");
  EXPECT_EQ(ParseJson("{", "F").status().message(), "F: not JSON");
  EXPECT_THAT(
      std::string(
          ParseJson(std::string(30000, '[') + std::string(30000, ']'), "F").status().message()),
      HasSubstr("levels within each other"));
  EXPECT_THAT(std::string(ParseJson(std::string(kMaxYamlBytes + 1, ' '), "F").status().message()),
              HasSubstr("too many"));
}

}  // namespace
}  // namespace dtrain::faces
