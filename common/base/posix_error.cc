// SPDX-License-Identifier: Apache-2.0
#include "common/base/posix_error.h"

#include <locale.h>
#include <string.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace dtrain {

absl::string_view PosixErrorText(int error_number) {
  // In English, whatever the locale. glibc's table without a locale (strerrordesc_np) needs 2.32.
  static const locale_t kC = newlocale(LC_ALL_MASK, "C", nullptr);
  const absl::string_view text = strerror_l(error_number, kC);
  // Of an unknown number the text lies in a buffer that the next call overwrites.
  return absl::StartsWith(text, "Unknown error ") ? "unknown error" : text;
}

absl::Status PosixError(int error_number, absl::string_view what) {
  return absl::Status(absl::ErrnoToStatusCode(error_number),
                      absl::StrCat(what, ": ", PosixErrorText(error_number)));
}

}  // namespace dtrain
