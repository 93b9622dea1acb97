// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <system_error>

#include "runtime/base/result.h"

namespace dtrain::runtime {

// Gloo's texts begin with "[./source/file.cc:123] ".
inline std::string WithoutLocation(std::string_view text) {
  const size_t end = text.find("] ");
  const bool has_location = text.starts_with('[') && text.substr(0, end).find(".cc:") != text.npos;
  if (has_location && end != text.npos) text.remove_prefix(end + 2);
  return Printable(text);
}

// Runs `call`, which may throw as Gloo does; returns what it threw.
template <typename Call>
MaybeError Catch(Call call) {
  try {
    call();
    return std::nullopt;
  } catch (const std::bad_alloc&) {
    return Error{DTRAIN_ERROR_RESOURCES, "out of memory"};
  } catch (const std::system_error& e) {
    return Error{DTRAIN_ERROR_RESOURCES, Printable(e.what())};
  } catch (const std::exception& e) {
    const std::string text = WithoutLocation(e.what());
    const bool late = text.starts_with("Timed out") || text.starts_with("Connect timeout");
    return Error{late ? DTRAIN_ERROR_TIMEOUT : DTRAIN_ERROR_NETWORK, text};
  } catch (...) {
    return Error{DTRAIN_ERROR_INTERNAL, "Gloo threw something that is no std::exception"};
  }
}

}  // namespace dtrain::runtime
