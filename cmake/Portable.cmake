# SPDX-License-Identifier: Apache-2.0
# Target `portable`: the programs and libdtrain once more, from the same objects, linked for systems with an
# old glibc (docs/adr/0021). In <build>/portable: bin, lib, and debug, which has what was stripped.
set(DTRAIN_GLIBC "" CACHE STRING "The oldest glibc that the programs of target `portable` run on: 2.28, or empty: no such target")
set(list ${CMAKE_SOURCE_DIR}/cmake/glibc/${CMAKE_SYSTEM_PROCESSOR}.list)
if(NOT DTRAIN_GLIBC MATCHES "^(2\\.28)?$")
  message(FATAL_ERROR "DTRAIN_GLIBC is \"${DTRAIN_GLIBC}\": it must be 2.28 or empty")
endif()
if(DTRAIN_GLIBC AND NOT EXISTS ${list})
  message(STATUS "no target `portable`: there is no ${list}")
endif()
if(NOT DTRAIN_GLIBC OR NOT EXISTS ${list})
  function(dtrain_portable)
  endfunction()
  return()
endif()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${list})

# Libraries with the names, versions and sizes of the list, and nothing in them. Linking against them
# leaves undefined what the old glibc lacks: common/portable has that, in the place of libc_nonshared.a.
set(DTRAIN_STUBS ${CMAKE_BINARY_DIR}/portable/glibc)
set(DTRAIN_STUB_FILES)

# dtrain_stub(LIBRARY FILE): the lines of one library, as FILE.
function(dtrain_stub library file)
  file(STRINGS ${list} lines REGEX " ${library}$")
  if(NOT lines)
    message(FATAL_ERROR "${list} has no name of ${library}")
  endif()
  set(assembly ".text\n")
  set(versions)
  foreach(line ${lines})
    string(REPLACE " " ";" line ${line})
    list(GET line 0 name)
    list(GET line 1 version)
    list(GET line 2 kind)
    list(GET line 3 size)
    if(kind STREQUAL FUNC)
      string(APPEND assembly ".globl stub_${name}\n.type stub_${name}, %function\nstub_${name}: .byte 0\n")
    elseif(kind STREQUAL OBJECT)
      string(APPEND assembly ".bss\n.balign 32\n.globl stub_${name}\n.type stub_${name}, %object\n"
                             ".size stub_${name}, ${size}\nstub_${name}: .skip ${size}\n.text\n")
      set(size_${name} ${size})
    elseif(kind STREQUAL ALIAS)  # of the object `size`
      string(APPEND assembly ".weak stub_${name}\n.type stub_${name}, %object\n"
                             ".size stub_${name}, ${size_${size}}\n.set stub_${name}, stub_${size}\n")
    else()
      message(FATAL_ERROR "${list}: ${name} is a ${kind}")
    endif()
    string(APPEND assembly ".symver stub_${name}, ${name}@@${version}\n")
    list(APPEND versions ${version})
    list(APPEND names_${version} ${name})
  endforeach()
  list(REMOVE_DUPLICATES versions)
  set(map)
  set(others "local: *;")
  foreach(version ${versions})
    list(JOIN names_${version} "; " names)
    string(APPEND map "${version} { global: ${names}; ${others} };\n")
    set(others)
  endforeach()
  set(source ${DTRAIN_STUBS}/${library})
  file(GENERATE OUTPUT ${source}.S CONTENT "${assembly}.section .note.GNU-stack,\"\",%progbits\n")
  file(GENERATE OUTPUT ${source}.map CONTENT "${map}")
  set(output ${DTRAIN_STUBS}/${file})
  add_custom_command(OUTPUT ${output} DEPENDS ${source}.S ${source}.map VERBATIM
    COMMAND ${CMAKE_C_COMPILER} -shared -nostdlib -Wl,-soname,${library}
            -Wl,--version-script=${source}.map -o ${output} ${source}.S)
  set(DTRAIN_STUB_FILES ${DTRAIN_STUB_FILES} ${output} PARENT_SCOPE)
endfunction()

dtrain_stub(libpthread.so.0 libpthread.so)
dtrain_stub(libdl.so.2 libdl.so)
dtrain_stub(librt.so.1 librt.so)
dtrain_stub(libm.so.6 libm.so)
if(CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
  dtrain_stub(ld-linux-aarch64.so.1 ld.so)
else()
  dtrain_stub(ld-linux-x86-64.so.2 ld.so)
endif()
dtrain_stub(libc.so.6 libc.so.6)

file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/common/portable/*.c)
list(FILTER sources EXCLUDE REGEX "/start.c$")
# One object for each file: the linker takes what is missing and no more, and their feature macros differ.
add_library(dtrain_portable_shim STATIC EXCLUDE_FROM_ALL ${sources})
# start.c runs before there is anything that a stack protector could use.
add_library(dtrain_portable_start OBJECT EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/common/portable/start.c)
target_compile_options(dtrain_portable_start PRIVATE -fno-stack-protector)
foreach(target dtrain_portable_shim dtrain_portable_start)
  target_compile_options(${target} PRIVATE -O2 -fvisibility=hidden)
  dtrain_own(${target})
endforeach()
# The compiler looks here first for the files that it links to every program.
foreach(name Scrt1.o crt1.o)
  add_custom_command(OUTPUT ${DTRAIN_STUBS}/${name} VERBATIM DEPENDS $<TARGET_OBJECTS:dtrain_portable_start>
    COMMAND ${CMAKE_COMMAND} -E copy $<TARGET_OBJECTS:dtrain_portable_start> ${DTRAIN_STUBS}/${name})
  list(APPEND DTRAIN_STUB_FILES ${DTRAIN_STUBS}/${name})
endforeach()
execute_process(COMMAND ${CMAKE_C_COMPILER} -print-file-name=libc_nonshared.a
                OUTPUT_VARIABLE nonshared OUTPUT_STRIP_TRAILING_WHITESPACE)
file(GENERATE OUTPUT ${DTRAIN_STUBS}/libc.so CONTENT
"GROUP ( AS_NEEDED ( \"${DTRAIN_STUBS}/libpthread.so\" \"${DTRAIN_STUBS}/libdl.so\" \"${DTRAIN_STUBS}/librt.so\" )
  \"${DTRAIN_STUBS}/libc.so.6\" \"$<TARGET_FILE:dtrain_portable_shim>\" \"${nonshared}\"
  AS_NEEDED ( \"${DTRAIN_STUBS}/ld.so\" ) )\n")
add_custom_target(dtrain_stubs DEPENDS ${DTRAIN_STUB_FILES})
add_dependencies(dtrain_stubs dtrain_portable_shim)
add_custom_target(portable)
# What of which archive is inside, for tools/package's list of third parties.
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/portable/maps)

# dtrain_portable(TARGET [SHARED] NAME file [OBJECTS target] [EXPORTS map] DEPS ...): the program or library
# TARGET again, as target portable_TARGET and file portable/bin/NAME or portable/lib/libNAME.so. OBJECTS: the
# target that has its objects, if that is another. EXPORTS: a version script, else it exports what its own
# objects do.
function(dtrain_portable target)
  cmake_parse_arguments(ARG "SHARED" "NAME;OBJECTS;EXPORTS" "DEPS" ${ARGN})
  set(copy portable_${target})
  set(objects $<TARGET_OBJECTS:${target}>)
  if(ARG_SHARED)
    set(objects $<TARGET_OBJECTS:${ARG_OBJECTS}>)
    add_library(${copy} SHARED EXCLUDE_FROM_ALL ${objects})
    target_link_options(${copy} PRIVATE -Wl,-z,defs)
  else()
    add_executable(${copy} EXCLUDE_FROM_ALL ${objects})
  endif()
  set_target_properties(${copy} PROPERTIES
    LINKER_LANGUAGE CXX OUTPUT_NAME ${ARG_NAME} DTRAIN_STATIC_SSL ON BUILD_RPATH_USE_ORIGIN ON
    RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/portable/bin
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/portable/lib)
  target_link_libraries(${copy} PRIVATE ${ARG_DEPS})
  target_link_options(${copy} PRIVATE -B${DTRAIN_STUBS}/ -L${DTRAIN_STUBS} -static-libstdc++ -static-libgcc
                      -Wl,--build-id=sha1 -Wl,-Map=${CMAKE_BINARY_DIR}/portable/maps/${target}.map)
  if(ARG_EXPORTS)
    target_link_options(${copy} PRIVATE -Wl,--version-script=${ARG_EXPORTS})
  else()
    target_link_options(${copy} PRIVATE -Wl,--exclude-libs,ALL)
  endif()
  set_property(TARGET ${copy} APPEND PROPERTY
               LINK_DEPENDS ${list} ${ARG_EXPORTS} $<TARGET_FILE:dtrain_portable_shim>)
  add_dependencies(${copy} dtrain_stubs)
  # What a debugger finds by the build id, or by the name, apart.
  set(debug ${CMAKE_BINARY_DIR}/portable/debug)
  add_custom_command(TARGET ${copy} POST_BUILD VERBATIM
    COMMAND ${CMAKE_COMMAND} -E make_directory ${debug}
    COMMAND ${CMAKE_OBJCOPY} --only-keep-debug $<TARGET_FILE:${copy}> ${debug}/$<TARGET_FILE_NAME:${copy}>.debug
    COMMAND ${CMAKE_OBJCOPY} --strip-all --add-gnu-debuglink=${debug}/$<TARGET_FILE_NAME:${copy}>.debug
            $<TARGET_FILE:${copy}>)
  add_dependencies(portable ${copy})
endfunction()

# libssh for systems that have none: a library of its own, which anyone may replace (LGPL), with the OpenSSL
# and zlib that it needs inside. launcher/transport/libssh.cc opens it when there is no other.
find_library(DTRAIN_LIBSSH_ARCHIVE libssh.a)
if(DTRAIN_LIBSSH_ARCHIVE)
  add_library(dtrain_libssh OBJECT EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/common/portable/ssh/gssapi.c)
  dtrain_own(dtrain_libssh)
  dtrain_portable(dtrain_libssh SHARED NAME dtrain-ssh OBJECTS dtrain_libssh
    EXPORTS ${CMAKE_SOURCE_DIR}/common/portable/ssh/libdtrain-ssh.map
    DEPS -Wl,--whole-archive ${DTRAIN_LIBSSH_ARCHIVE} -Wl,--no-whole-archive
         "-Wl,-Bstatic -lcrypto -lz -Wl,-Bdynamic")
  set_target_properties(portable_dtrain_libssh PROPERTIES
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/portable/lib/dtrain)
else()
  message(STATUS "no libssh.a (libssh-dev): target `portable` makes no libdtrain-ssh.so")
endif()
