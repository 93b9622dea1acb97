// SPDX-License-Identifier: Apache-2.0
#include "common/base/posix_error.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace dtrain {

absl::string_view PosixErrorText(int error_number) {
  const char* text = strerrordesc_np(error_number);
  return text != nullptr ? text : "unknown error";
}

absl::Status PosixError(int error_number, absl::string_view what) {
  return absl::Status(absl::ErrnoToStatusCode(error_number),
                      absl::StrCat(what, ": ", PosixErrorText(error_number)));
}

}  // namespace dtrain
