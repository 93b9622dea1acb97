// SPDX-License-Identifier: Apache-2.0
#include "common/link/kept_bytes.h"

#include "common/base/check.h"

namespace dtrain::link {

bool KeptBytes::Add(const SharedBytes& message) {
  const auto found = keepers_.find(message.owner());
  const size_t more = kKeepingOverhead + (found == keepers_.end() ? message.whole() : 0);
  if (more > most_ - bytes_) return false;
  bytes_ += more;
  ++keepers_[message.owner()];
  return true;
}

void KeptBytes::Remove(const SharedBytes& message) {
  const auto found = keepers_.find(message.owner());
  DTRAIN_CHECK(found != keepers_.end());
  bytes_ -= kKeepingOverhead;
  if (--found->second > 0) return;
  bytes_ -= message.whole();
  keepers_.erase(found);
}

}  // namespace dtrain::link
