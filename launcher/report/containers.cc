// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/containers.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/text.h"

namespace dtrain::report {

std::string ContainerLines(const v1::JobPart& part) {
  std::string text;
  for (int i = 0; i < part.programs_size(); ++i) {
    if (!part.programs(i).has_container()) continue;
    const v1::Container& container = part.programs(i).container();
    if (part.programs_size() > 1) absl::StrAppend(&text, "program ", i + 1, ": ");
    absl::StrAppend(&text, "container: ", Escape(container.image()), ", run by ",
                    container.runtime().empty() ? "what the node has" : container.runtime());
    if (container.mounts_size() > 0) {
      absl::StrAppend(&text, ", mounts ", Escape(absl::StrJoin(container.mounts(), " ")));
    }
    if (container.options_size() > 0) {
      absl::StrAppend(&text, ", options ", Escape(absl::StrJoin(container.options(), " ")));
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

}  // namespace dtrain::report
