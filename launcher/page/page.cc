// SPDX-License-Identifier: Apache-2.0
#include "launcher/page/page.h"

#include "launcher/page/bytes.h"

namespace dtrain::page {

std::string Text(Shows shows) {
  std::string text;
  text.append(kBeforeShows);
  text.append(shows == Shows::kNode ? "node" : "job");
  text.append(kAfterShows);
  return text;
}

std::string_view Policy() { return kTextPolicy; }

}  // namespace dtrain::page
