# SPDX-License-Identifier: Apache-2.0
# Toolchain file of preset `aarch64`: Debian's cross compiler, the libraries that tools/arm64-root has unpacked,
# and QEMU to run what was built. Code generators are those of this machine.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

set(DTRAIN_ARM64_ROOT ${CMAKE_CURRENT_LIST_DIR}/../build/arm64-root CACHE PATH "What tools/arm64-root has made")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES DTRAIN_ARM64_ROOT)
get_filename_component(root ${DTRAIN_ARM64_ROOT}/bookworm ABSOLUTE)
if(NOT EXISTS ${root}/usr/include)
  message(FATAL_ERROR "there is no ${root}; run tools/arm64-root")
endif()
set(CMAKE_SYSROOT ${root})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${root})
set(ENV{PKG_CONFIG_LIBDIR} ${root}/usr/lib/aarch64-linux-gnu/pkgconfig:${root}/usr/share/pkgconfig)

find_program(DTRAIN_QEMU qemu-aarch64-static)
if(DTRAIN_QEMU)
  set(CMAKE_CROSSCOMPILING_EMULATOR ${DTRAIN_QEMU} -L ${root})
endif()
