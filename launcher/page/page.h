// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

// The web page that shows a job or a node, with all that it needs inside. It holds no data: it asks
// the server that it came from, with a token.
namespace dtrain::page {

enum class Shows { kJob, kNode };

std::string Text(Shows shows);
// Its Content-Security-Policy: these scripts and styles and no others, requests to its server only.
std::string_view Policy();

}  // namespace dtrain::page
