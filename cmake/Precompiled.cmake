# SPDX-License-Identifier: Apache-2.0
# Headers of others that most of our sources include, compiled once per build, and all sources of a target
# compiled as one: a fifth of the work for a build from a cold cache. The dev and lint presets do neither, and
# show that every source includes what it uses.
option(DTRAIN_PRECOMPILE "Precompile common headers and compile several sources as one")
if(NOT DTRAIN_PRECOMPILE)
  function(dtrain_precompiled)
  endfunction()
  return()
endif()

# However many sources: one of eight takes 14 s where GCC compiles 48 in 28 s, as each instantiates the same
# templates of the same libraries.
set(CMAKE_UNITY_BUILD_BATCH_SIZE 0)

# A compiler takes a precompiled header only with the flags that it was made with: a library's (-fPIC)
# or a program's (-fPIE).
file(WRITE ${CMAKE_BINARY_DIR}/precompiled.cc "int main() {}\n")
add_library(dtrain_precompiled_library STATIC ${CMAKE_BINARY_DIR}/precompiled.cc)
add_executable(dtrain_precompiled_test ${CMAKE_BINARY_DIR}/precompiled.cc)
# Tests are run once: what the optimizer does costs more than it saves, and so would UBSan's code and that
# which tells a fuzzer where it is. In a large source GCC 12 takes a file's own types for those of another.
set(DTRAIN_TEST_OPTIONS -O0 $<$<CONFIG:Release>:-g0> $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
if(DTRAIN_SANITIZE MATCHES "undefined")
  list(APPEND DTRAIN_TEST_OPTIONS -fno-sanitize=undefined)
endif()
if(DTRAIN_FUZZ)
  list(APPEND DTRAIN_TEST_OPTIONS -fno-sanitize=fuzzer-no-link)
endif()
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
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON)
  if(kind STREQUAL test)
    target_compile_options(${target} PRIVATE ${DTRAIN_TEST_OPTIONS})
  endif()
  target_precompile_headers(${target} REUSE_FROM dtrain_precompiled_${kind})
endfunction()
