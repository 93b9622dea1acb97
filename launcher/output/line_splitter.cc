// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/line_splitter.h"

#include <algorithm>
#include <cstring>

namespace dtrain::output {

void LineSplitter::Add(absl::string_view bytes, OnLine on_line) {
  while (!bytes.empty()) {
    // One byte more than fits: a line of just kMaxLine bytes is whole when that is its newline.
    size_t room = std::min(kMaxLine + 1 - pending_.size(), bytes.size());
    const void* end = memchr(bytes.data(), '\n', room);
    bool ended = end != nullptr;
    if (!ended && pending_.size() + room <= kMaxLine) {
      pending_.append(bytes.data(), room);
      return;
    }
    size_t length = ended ? static_cast<size_t>(static_cast<const char*>(end) - bytes.data())
                          : kMaxLine - pending_.size();
    if (pending_.empty()) {
      on_line(bytes.substr(0, length), ended);
    } else {
      pending_.append(bytes.data(), length);
      on_line(pending_, ended);
      pending_.clear();
    }
    bytes.remove_prefix(length + (ended ? 1 : 0));
  }
}

void LineSplitter::Flush(OnLine on_line) {
  if (pending_.empty()) return;
  on_line(pending_, false);
  pending_.clear();
}

}  // namespace dtrain::output
