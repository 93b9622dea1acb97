# SPDX-License-Identifier: Apache-2.0
# Compiler, linker and sanitizer settings for our own code.
find_program(DTRAIN_CCACHE ccache)
if(DTRAIN_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER ${DTRAIN_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${DTRAIN_CCACHE})
endif()

add_library(dtrain_warnings INTERFACE)
target_compile_options(dtrain_warnings INTERFACE -Wall -Wextra -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC bug 105651: -O2 sees overlapping copies in std::string concatenation that cannot be.
  target_compile_options(dtrain_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
elseif(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # What later optimisers believe to see in fmt and std::variant differs by version and is false;
  # GCC 12, which CI has, keeps these as errors.
  foreach(warning array-bounds dangling-pointer dangling-reference free-nonheap-object
          maybe-uninitialized restrict stringop-overflow stringop-overread use-after-free)
    target_compile_options(dtrain_warnings INTERFACE
                           $<$<COMPILE_LANGUAGE:CXX>:-Wno-error=${warning}>)
  endforeach()
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND DTRAIN_SANITIZE)
  # Instrumented, std::variant and std::regex look to GCC as if they used what is not set.
  target_compile_options(dtrain_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized>)
endif()

# What belongs to the loop's thread is checked where it is called (common/loop/loop.h).
add_compile_definitions($<$<CONFIG:Debug>:DTRAIN_CHECKS_THREADS>)
# Paths in messages are relative to the repository, also where ccache has made them relative to the build's folder.
add_compile_options(-ffile-prefix-map=${CMAKE_SOURCE_DIR}/= -ffile-prefix-map=../../= -fno-omit-frame-pointer)

if(DTRAIN_SANITIZE)
  # UBSan looks at an object's type through a pipe of its own, and takes it for a wrong one where a test
  # has used up all descriptors.
  add_compile_options(-fsanitize=${DTRAIN_SANITIZE} -fno-sanitize=vptr -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${DTRAIN_SANITIZE})
endif()
# One build with AddressSanitizer is tested and fuzzed: libFuzzer is clang's.
set(DTRAIN_FUZZ OFF)
if(DTRAIN_SANITIZE MATCHES "address" AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  set(DTRAIN_FUZZ ON)
  # Without what needs the types of libraries that are not built so. GCC's name is what sources ask for.
  add_compile_options(-fsanitize=fuzzer-no-link -fno-sanitize=function)
  add_compile_definitions(__SANITIZE_ADDRESS__=1)
  add_link_options(-fuse-ld=lld)
endif()
if(DTRAIN_SANITIZE MATCHES "thread")
  # Asio has fences, which ThreadSanitizer does not follow; its queues take locks as well.
  add_compile_options(-Wno-tsan)
endif()
if(DTRAIN_PRECOMPILE)
  # What these take is not worth a search for what can be freed: a tenth of the work.
  add_compile_options($<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-heapsize=1000000>)
  # A class with members of types of its own file's, which is not the file that is compiled here.
  add_compile_options($<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-subobject-linkage>)
endif()
