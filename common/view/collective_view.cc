// SPDX-License-Identifier: Apache-2.0
#include "common/view/collective_view.h"

#include <nlohmann/json.hpp>

#include "common/base/collective_name.h"

namespace dtrain::view {

nlohmann::ordered_json CollectiveView(const v1::RankProgress& progress) {
  nlohmann::ordered_json json = {{"operations", progress.operations()},
                                 {"bytes", progress.total_bytes()},
                                 {"busy_s", static_cast<double>(progress.busy_nanos()) / 1e9},
                                 {"wait_s", static_cast<double>(progress.wait_nanos()) / 1e9}};
  if (progress.inside()) {
    json["now"] = {{"kind", CollectiveName(progress.kind())},
                   {"number", progress.number()},
                   {"group", progress.group()},
                   {"bytes", progress.bytes()},
                   {"seconds", static_cast<double>(progress.inside_nanos()) / 1e9}};
  }
  return json;
}

}  // namespace dtrain::view
