// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dtrain::auth {

// Which account of this node a certificate's name stands for. Lines `name = account`, comments
// from # on; who is not named has the account of the same name.
class AccountMap {
 public:
  // The error names the line.
  static absl::StatusOr<AccountMap> Parse(absl::string_view text);
  std::string AccountFor(absl::string_view certificate_name) const;

 private:
  std::map<std::string, std::string, std::less<>> accounts_;
};

}  // namespace dtrain::auth
