// SPDX-License-Identifier: Apache-2.0
#include "launcher/faces/yaml.h"
#include "tests/fuzz/expect.h"

namespace {

using dtrain::faces::Value;

void ExpectSound(const Value& value, int depth) {
  DTRAIN_CHECK(depth <= dtrain::faces::kMaxYamlDepth + 1);
  for (const Value& each : value) {
    if (each.is_structured()) ExpectSound(each, depth + 1);
  }
  if (value.is_structured()) return;
  DTRAIN_CHECK(dtrain::faces::PythonText(value).ok());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text = dtrain::fuzz::Text(data, size);
  for (auto* parse : {dtrain::faces::ParseYaml, dtrain::faces::ParseJson}) {
    const auto value = parse(text, "F");
    if (value.ok()) {
      ExpectSound(*value, 0);
    } else {
      dtrain::fuzz::ExpectPrintable(value.status());
    }
  }
  return 0;
}
