# SPDX-License-Identifier: Apache-2.0
# Headers of others that most of our sources include, compiled once per build, and several sources compiled
# as one: much less work for a build from a cold cache. In the release build only for the tests, so
# that it shows that every source of a program includes what it uses.
set(DTRAIN_PRECOMPILE "" CACHE STRING
    "Precompile common headers and compile several sources as one for: all, tests, or nothing (empty)")
if(NOT DTRAIN_PRECOMPILE MATCHES "^(all|tests)?$")
  message(FATAL_ERROR "DTRAIN_PRECOMPILE is \"${DTRAIN_PRECOMPILE}\": it must be all, tests or empty")
endif()
if(NOT DTRAIN_PRECOMPILE)
  function(dtrain_precompiled)
  endfunction()
  return()
endif()

# A compiler takes a precompiled header only with the flags that it was made with: a library's (-fPIC)
# or a program's (-fPIE).
file(WRITE ${CMAKE_BINARY_DIR}/precompiled.cc "int main() {}\n")
add_library(dtrain_precompiled_library STATIC ${CMAKE_BINARY_DIR}/precompiled.cc)
add_executable(dtrain_precompiled_test ${CMAKE_BINARY_DIR}/precompiled.cc)
# Tests are run once: what the optimizer does after -O1 costs more than it saves. In a large source GCC 12
# takes a long string for one that is kept in place, and a file's own types for those of another; it warns.
set(DTRAIN_TEST_OPTIONS $<$<CONFIG:Release>:-O1>
    "$<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds;-Wno-stringop-overflow;-Wno-subobject-linkage>")
target_compile_options(dtrain_precompiled_test PRIVATE ${DTRAIN_TEST_OPTIONS})
target_link_libraries(dtrain_precompiled_test PRIVATE GTest::gmock)
foreach(kind library test)
  target_link_libraries(dtrain_precompiled_${kind} PRIVATE dtrain_warnings)
  target_precompile_headers(dtrain_precompiled_${kind} PRIVATE
    <algorithm> <array> <chrono> <cstdint> <deque> <functional> <map> <memory> <optional> <set>
    <sstream> <string> <string_view> <unordered_map> <utility> <variant> <vector>
    <absl/status/statusor.h> <absl/strings/str_cat.h> <absl/strings/str_format.h>
    <absl/strings/str_join.h> <absl/strings/str_split.h>)
endforeach()
target_precompile_headers(dtrain_precompiled_test PRIVATE <gmock/gmock.h> <gtest/gtest.h>)

# dtrain_precompiled(TARGET library|test)
function(dtrain_precompiled target kind)
  if(kind STREQUAL library AND NOT DTRAIN_PRECOMPILE STREQUAL all)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON)
  if(kind STREQUAL test)
    target_compile_options(${target} PRIVATE ${DTRAIN_TEST_OPTIONS})
  endif()
  target_precompile_headers(${target} REUSE_FROM dtrain_precompiled_${kind})
endfunction()
