# SPDX-License-Identifier: Apache-2.0
# dtrain_folder(common/os [GROUP core] DEPS ...): all sources of one folder as one static library, target
# dtrain_common_os. A dependency with a slash, `proto` or `rendezvous` names another folder.
# In a build that compiles many sources as one (Precompiled.cmake) the folders of a GROUP share a library and a
# compilation, as every compilation instantiates the same templates of the same libraries again: half of the
# work. The folder's target then only names its group's. Groups depend on each other without cycles.

function(dtrain_target_name folder out)
  string(REPLACE "/" "_" name ${folder})
  set(${out} dtrain_${name} PARENT_SCOPE)
endfunction()

function(dtrain_resolve out)
  set(result)
  foreach(dep ${ARGN})
    if(dep MATCHES "/" OR dep STREQUAL "proto" OR dep STREQUAL "rendezvous")
      dtrain_target_name(${dep} dep)
    endif()
    list(APPEND result ${dep})
  endforeach()
  set(${out} ${result} PARENT_SCOPE)
endfunction()

# ThreadSanitizer's build has the tests of what has threads (tests/CMakeLists.txt), and what these need.
set(DTRAIN_ALL)
if(DTRAIN_SANITIZE MATCHES "thread")
  set(DTRAIN_ALL EXCLUDE_FROM_ALL)
endif()

# dtrain_needs(launcher/status DEPS): what a folder, a program or a program of tests is made from, for
# tests/changed.py. dtrain_write_needs: into build/<preset>/needs.txt, a line each.
function(dtrain_needs name)
  list(JOIN ARGN " " deps)
  set_property(GLOBAL APPEND_STRING PROPERTY DTRAIN_NEEDS "${name}: ${deps}\n")
endfunction()
function(dtrain_write_needs)
  get_property(needs GLOBAL PROPERTY DTRAIN_NEEDS)
  file(WRITE ${CMAKE_BINARY_DIR}/needs.txt "${needs}")
endfunction()

# Our own code: warnings are errors.
function(dtrain_own target)
  target_link_libraries(${target} PRIVATE dtrain_warnings)
endfunction()

# dtrain_compiled(common/os out): the target that compiles a folder's sources.
function(dtrain_compiled folder out)
  dtrain_target_name(${folder} target)
  get_target_property(group ${target} DTRAIN_GROUP)
  if(group)
    set(target ${group})
  endif()
  set(${out} ${target} PARENT_SCOPE)
endfunction()

function(dtrain_folder folder)
  cmake_parse_arguments(ARG "" "GROUP" "DEPS" ${ARGN})
  dtrain_needs(${folder} ${ARG_DEPS})
  dtrain_target_name(${folder} target)
  dtrain_resolve(deps ${ARG_DEPS})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/*.cc)
  if(sources)
    set(compiled ${target})
    if(ARG_GROUP AND DTRAIN_PRECOMPILE)
      set(compiled dtrain_group_${ARG_GROUP})
      add_library(${target} INTERFACE)
      target_link_libraries(${target} INTERFACE ${compiled})
      set_target_properties(${target} PROPERTIES DTRAIN_GROUP ${compiled})
    endif()
    if(NOT TARGET ${compiled})
      add_library(${compiled} STATIC ${DTRAIN_ALL})
      target_include_directories(${compiled} PUBLIC ${CMAKE_SOURCE_DIR})
      dtrain_own(${compiled})
      dtrain_precompiled(${compiled} library)
    endif()
    dtrain_sources(${compiled} ${sources})
    foreach(dep ${deps})
      set(group)
      if(TARGET ${dep})
        get_target_property(group ${dep} DTRAIN_GROUP)
      endif()
      if(NOT group STREQUAL compiled)
        target_link_libraries(${compiled} PUBLIC ${dep})
      endif()
    endforeach()
  else()
    add_library(${target} INTERFACE)
    target_include_directories(${target} INTERFACE ${CMAKE_SOURCE_DIR})
    target_link_libraries(${target} INTERFACE ${deps})
  endif()
endfunction()

# <folder>/commit.h: which commit is built.
function(dtrain_commit folder)
  dtrain_compiled(${folder} target)
  set(header ${CMAKE_BINARY_DIR}/gen/${folder}/commit.h)
  add_custom_target(${target}_commit BYPRODUCTS ${header} VERBATIM
    COMMAND ${CMAKE_COMMAND} -DSOURCE=${CMAKE_SOURCE_DIR} -DOUT=${header} -P ${CMAKE_SOURCE_DIR}/cmake/Commit.cmake)
  target_include_directories(${target} PRIVATE ${CMAKE_BINARY_DIR}/gen)
  add_dependencies(${target} ${target}_commit)
endfunction()

# <folder>/bytes.h: the web page, put together from the folder's other files.
function(dtrain_page folder)
  dtrain_compiled(${folder} target)
  set(header ${CMAKE_BINARY_DIR}/gen/${folder}/bytes.h)
  set(script ${CMAKE_SOURCE_DIR}/cmake/Page.cmake)
  file(GLOB parts CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/*.html ${CMAKE_SOURCE_DIR}/${folder}/*.css
       ${CMAKE_SOURCE_DIR}/${folder}/*.js ${CMAKE_SOURCE_DIR}/${folder}/vendor/*)
  add_custom_command(OUTPUT ${header} DEPENDS ${script} ${parts} VERBATIM
    COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/gen/${folder}
    COMMAND ${CMAKE_COMMAND} -DSOURCE=${CMAKE_SOURCE_DIR}/${folder} -DOUT=${header} -P ${script})
  target_sources(${target} PRIVATE ${header})
  target_include_directories(${target} PRIVATE ${CMAKE_BINARY_DIR}/gen)
endfunction()

# dtrain_program(launcher NAME dtrain [STATIC] DEPS ...): the folder's own sources, main.cc among
# them, as a program. STATIC leaves only glibc dynamic.
function(dtrain_program folder)
  cmake_parse_arguments(ARG "STATIC" "NAME" "DEPS" ${ARGN})
  dtrain_needs(${ARG_NAME} ${folder} ${ARG_DEPS})
  dtrain_resolve(deps ${ARG_DEPS})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/*.cc)
  if(NOT sources)
    return()
  endif()
  add_executable(${ARG_NAME} ${DTRAIN_ALL})
  dtrain_sources(${ARG_NAME} ${sources})
  target_include_directories(${ARG_NAME} PRIVATE ${CMAKE_SOURCE_DIR})
  target_compile_definitions(${ARG_NAME} PRIVATE
    DTRAIN_VERSION="${PROJECT_VERSION}" DTRAIN_DATE="${DTRAIN_DATE}")
  target_link_libraries(${ARG_NAME} PRIVATE ${deps})
  set_target_properties(${ARG_NAME} PROPERTIES DTRAIN_STATIC_SSL ON)
  if(NOT DTRAIN_SANITIZE)
    # Looking up libstdc++'s names takes a millisecond of each start.
    target_link_options(${ARG_NAME} PRIVATE -static-libstdc++ -static-libgcc)
  endif()
  if(ARG_STATIC AND NOT DTRAIN_SANITIZE)
    # What is pushed to nodes is as small as it can be: without symbols in a release.
    target_link_options(${ARG_NAME} PRIVATE $<$<CONFIG:Release>:-s>)
  endif()
  dtrain_own(${ARG_NAME})
  dtrain_portable(${ARG_NAME} NAME ${ARG_NAME} DEPS ${deps})
endfunction()

# The wire contract. Generated code is compiled once, without our warnings.
function(dtrain_proto folder)
  file(GLOB protos CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/dtrain/v1/*.proto)
  set(out ${CMAKE_BINARY_DIR}/gen)
  file(MAKE_DIRECTORY ${out})
  set(messages)
  set(services)
  foreach(proto ${protos})
    file(RELATIVE_PATH rel ${CMAKE_SOURCE_DIR}/${folder} ${proto})
    string(REGEX REPLACE "\\.proto$" "" stem ${rel})
    add_custom_command(
      OUTPUT ${out}/${stem}.pb.cc ${out}/${stem}.pb.h ${out}/${stem}.grpc.pb.cc
             ${out}/${stem}.grpc.pb.h
      COMMAND protobuf::protoc --cpp_out=${out} --grpc_out=${out}
              --plugin=protoc-gen-grpc=${DTRAIN_GRPC_PLUGIN} -I ${CMAKE_SOURCE_DIR}/${folder} ${rel}
      WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}/${folder}
      DEPENDS ${protos} VERBATIM)
    list(APPEND messages ${out}/${stem}.pb.cc)
    file(STRINGS ${proto} has_service REGEX "^service ")
    if(has_service)
      list(APPEND services ${out}/${stem}.grpc.pb.cc)
    endif()
  endforeach()
  add_library(dtrain_proto STATIC ${messages})
  target_include_directories(dtrain_proto SYSTEM PUBLIC ${out})
  target_link_libraries(dtrain_proto PUBLIC dtrain_protobuf)
  add_library(dtrain_proto_grpc STATIC ${services})
  target_link_libraries(dtrain_proto_grpc PUBLIC dtrain_proto dtrain_grpc)
  if(DTRAIN_SANITIZE AND NOT DTRAIN_SANITIZE MATCHES "thread")
    # Like the library that calls it, it is not looked into: that would double what this build costs.
    # ThreadSanitizer must: the linker takes inline functions of the libraries' headers, with the atomics that
    # order our code, from any of the objects.
    foreach(target dtrain_proto dtrain_proto_grpc)
      target_compile_options(${target} PRIVATE -fno-sanitize=all)
    endforeach()
  endif()
  foreach(target dtrain_proto dtrain_proto_grpc)
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)  # more is not measurable, and slower to compile
  endforeach()
endfunction()
