# SPDX-License-Identifier: Apache-2.0
# Headers of others that most of our sources include, compiled once per build, and all sources of a target
# compiled as one: a fifth of the work for a build from a cold cache. The dev preset does neither, and
# shows that every source includes what it uses.
option(DTRAIN_PRECOMPILE "Precompile common headers and compile several sources as one")

# dtrain_sources(TARGET [BATCH n] SOURCES...): adds sources to a target, in this build as one source that includes
# them all, or n at a time. One of eight takes 14 s where GCC compiles 48 in 28 s, as each instantiates the same
# templates of the same libraries. The sources that CMake's UNITY_BUILD writes have the names of a checkout in
# them, for which ccache does not look: with its objects another checkout got those names as dependencies, and
# no longer saw its own changes. The target needs the repository in its include path.
function(dtrain_sources target)
  cmake_parse_arguments(ARG "" "BATCH" "" ${ARGN})
  if(NOT DTRAIN_PRECOMPILE)
    target_sources(${target} PRIVATE ${ARG_UNPARSED_ARGUMENTS})
    return()
  endif()
  set(count 0)
  foreach(source ${ARG_UNPARSED_ARGUMENTS})
    set(number 0)
    if(ARG_BATCH)
      math(EXPR number "${count} / ${ARG_BATCH}")
    endif()
    math(EXPR count "${count} + 1")
    get_property(written TARGET ${target} PROPERTY DTRAIN_INCLUDES_${number} SET)
    if(NOT written)
      set(whole ${CMAKE_BINARY_DIR}/whole/${target}_${number}.cc)
      file(GENERATE OUTPUT ${whole} CONTENT "$<JOIN:$<TARGET_PROPERTY:${target},DTRAIN_INCLUDES_${number}>,\n>\n")
      target_sources(${target} PRIVATE ${whole})
    endif()
    get_filename_component(source ${source} ABSOLUTE)
    file(RELATIVE_PATH source ${CMAKE_SOURCE_DIR} ${source})
    set_property(TARGET ${target} APPEND PROPERTY DTRAIN_INCLUDES_${number} "#include \"${source}\"")
  endforeach()
endfunction()

if(NOT DTRAIN_PRECOMPILE)
  function(dtrain_precompiled)
  endfunction()
  return()
endif()

# Clang's precompiled headers hold the names of a checkout: another could not take them, nor what is made with them,
# from ccache.
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  set(CMAKE_DISABLE_PRECOMPILE_HEADERS ON)
endif()

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
  if(kind STREQUAL test)
    target_compile_options(${target} PRIVATE ${DTRAIN_TEST_OPTIONS})
  endif()
  target_precompile_headers(${target} REUSE_FROM dtrain_precompiled_${kind})
endfunction()
