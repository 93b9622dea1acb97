# SPDX-License-Identifier: Apache-2.0
# One INTERFACE target per third-party library; headers of all of them are SYSTEM.
# gRPC, Protobuf and absl are linked from their static archives: the agent must run on nodes that
# have glibc and nothing else, and a program that does not map 80 shared objects starts faster.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)

# Ubuntu 24.04 has the archive of c-ares under this name, which pkg-config does not tell.
find_library(DTRAIN_CARES_STATIC NAMES libcares_static.a)

# OpenSSL: our programs have it linked in (target property DTRAIN_STATIC_SSL), as looking up its
# names takes a millisecond of each start; tests share the object.
find_package(OpenSSL REQUIRED)
set(static_ssl "$<BOOL:$<TARGET_PROPERTY:DTRAIN_STATIC_SSL>>")
set(openssl "$<IF:${static_ssl},-Wl$<COMMA>-Bstatic -lssl -lcrypto -Wl$<COMMA>-Bdynamic -ldl,-lssl -lcrypto>")
add_library(dtrain_openssl INTERFACE)
target_link_libraries(dtrain_openssl INTERFACE "${openssl}")

# dtrain_static(TARGET [UNSECURE] pkg...): the packages' archives, glibc's own libraries dynamic.
function(dtrain_static target)
  cmake_parse_arguments(ARG "UNSECURE" "" "" ${ARGN})
  execute_process(COMMAND ${PKG_CONFIG_EXECUTABLE} --static --libs-only-l ${ARG_UNPARSED_ARGUMENTS}
                  OUTPUT_VARIABLE flags OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE rc)
  if(rc)
    message(FATAL_ERROR "pkg-config knows no ${ARG_UNPARSED_ARGUMENTS}; run tools/install-deps")
  endif()
  separate_arguments(flags)
  list(REMOVE_DUPLICATES flags)
  list(REMOVE_ITEM flags -ldl -pthread -lrt -lm -latomic -lssl -lcrypto)
  if(ARG_UNSECURE)
    list(TRANSFORM flags REPLACE "^(-lgrpc|-lgrpc\\+\\+)$" "\\1_unsecure")
  endif()
  if(DTRAIN_CARES_STATIC)
    list(TRANSFORM flags REPLACE "^-lcares$" -lcares_static)
  endif()
  add_library(${target} INTERFACE)
  # A group, because removing duplicates loses the order that single-pass linking needs.
  list(JOIN flags " " joined)
  target_link_options(${target} INTERFACE)
  set(kind -Wl,-Bstatic)
  if(DTRAIN_SANITIZE MATCHES "thread")
    # tests/support/tsan.supp tells our code from theirs by the object that it is in.
    set(kind -Wl,--as-needed)
  endif()
  target_link_libraries(${target} INTERFACE
    "${kind} -Wl,--start-group ${joined} -Wl,--end-group -Wl,-Bdynamic"
    Threads::Threads dl)
endfunction()

dtrain_static(dtrain_absl absl_status absl_statusor absl_strings absl_str_format absl_time
              absl_any_invocable absl_flat_hash_map absl_span)
dtrain_static(dtrain_protobuf protobuf)
# Without its TLS (ours is common/tls) and what comes with that, xDS above all: 2.7 of an agent's 17 MB,
# which are relocated at each start. The packages' own grpc++_unsecure.pc lacks what it is made of.
dtrain_static(dtrain_grpc UNSECURE grpc++)

# Opened at run time, by launcher/transport/libssh.
pkg_check_modules(LIBSSH REQUIRED libssh)
add_library(dtrain_ssh INTERFACE)
target_include_directories(dtrain_ssh SYSTEM INTERFACE ${LIBSSH_INCLUDE_DIRS})
target_link_libraries(dtrain_ssh INTERFACE dl)

# Opened at run time, by agent/pmix. Without its headers an agent serves no PMIx, and says so.
pkg_check_modules(PMIX pmix)
add_library(dtrain_pmix INTERFACE)
if(PMIX_FOUND)
  target_include_directories(dtrain_pmix SYSTEM INTERFACE ${PMIX_INCLUDE_DIRS})
  target_compile_definitions(dtrain_pmix INTERFACE DTRAIN_HAS_PMIX)
else()
  message(STATUS "no PMIx headers (libpmix-dev): agents will not serve Open MPI programs")
endif()
target_link_libraries(dtrain_pmix INTERFACE dl)

find_package(Boost 1.74 REQUIRED)
add_library(dtrain_asio INTERFACE)
target_compile_definitions(dtrain_asio INTERFACE BOOST_ASIO_NO_DEPRECATED)
target_link_libraries(dtrain_asio INTERFACE Boost::headers Threads::Threads)

# Of Boost only this header.
add_library(dtrain_crc INTERFACE)
target_link_libraries(dtrain_crc INTERFACE Boost::headers)

# Header-only, and so is its fmt: the distributions ship only shared objects of both.
find_package(spdlog REQUIRED)
find_package(fmt REQUIRED)
add_library(dtrain_spdlog INTERFACE)
target_compile_definitions(dtrain_spdlog INTERFACE SPDLOG_FMT_EXTERNAL)
target_link_libraries(dtrain_spdlog INTERFACE fmt::fmt-header-only)

find_package(nlohmann_json REQUIRED)
add_library(dtrain_json INTERFACE)
target_link_libraries(dtrain_json INTERFACE nlohmann_json::nlohmann_json)

find_package(CLI11 REQUIRED)
add_library(dtrain_cli11 INTERFACE)
target_link_libraries(dtrain_cli11 INTERFACE CLI11::CLI11)

# Header-only: what Debian has for CMake links the shared object.
find_path(DTRAIN_TOML_INCLUDE toml++/toml.h REQUIRED)
add_library(dtrain_toml INTERFACE)
target_include_directories(dtrain_toml SYSTEM INTERFACE ${DTRAIN_TOML_INCLUDE})

dtrain_static(dtrain_yaml yaml-0.1)
dtrain_static(dtrain_zlib zlib)

find_package(GTest REQUIRED)

find_package(Protobuf REQUIRED)
find_program(DTRAIN_GRPC_PLUGIN grpc_cpp_plugin REQUIRED)
