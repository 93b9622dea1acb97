# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts where, by component: each is a package (cmake/Packages.cmake).
set(CMAKE_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

# Manual pages and completion, written by the program that they are of.
file(GLOB handwritten CONFIGURE_DEPENDS docs/man/*)
set(reference ${CMAKE_BINARY_DIR}/reference)
add_custom_command(
  OUTPUT ${reference}/written
  COMMAND sh ${CMAKE_SOURCE_DIR}/cmake/write_reference.sh $<TARGET_FILE:dtrain> ${reference}
  DEPENDS dtrain cmake/write_reference.sh ${handwritten}
  WORKING_DIRECTORY ${CMAKE_SOURCE_DIR} VERBATIM)
add_custom_target(dtrain_reference ALL DEPENDS ${reference}/written)

install(TARGETS dtrain dtrain-allreduce COMPONENT launcher)
install(PROGRAMS deploy/pki/dtrain-pki TYPE BIN COMPONENT launcher OPTIONAL)
install(DIRECTORY ${reference}/man1 TYPE MAN COMPONENT launcher)
install(DIRECTORY ${reference}/bash-completion ${reference}/zsh ${reference}/fish TYPE DATA
        COMPONENT launcher)
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/dtrain COMPONENT launcher
        FILES_MATCHING PATTERN "*.md" PATTERN "*.svg" PATTERN "benchmarks.json" PATTERN man EXCLUDE)
install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/dtrain COMPONENT launcher
        PATTERN "__pycache__" EXCLUDE)

install(TARGETS dtrain-agent COMPONENT agent)
install(DIRECTORY ${reference}/man8 TYPE MAN COMPONENT agent)
# The units name the agent by its full path, known only when it is installed.
install(FILES deploy/systemd/dtrain-agent.service deploy/systemd/dtrain-agent.socket
        DESTINATION lib/systemd/system COMPONENT agent)
install(FILES deploy/systemd/user/dtrain-agent.service
        DESTINATION lib/systemd/user COMPONENT agent)
install(CODE [[
  foreach(unit system user)
    set(unit $ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/lib/systemd/${unit}/dtrain-agent.service)
    file(READ ${unit} text)
    string(REPLACE "=/usr/bin/" "=${CMAKE_INSTALL_PREFIX}/bin/" text "${text}")
    file(WRITE ${unit} "${text}")
  endforeach()]] COMPONENT agent)

install(TARGETS dtrain_runtime LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime
        NAMELINK_COMPONENT dev)
install(DIRECTORY runtime/include/dtrain TYPE INCLUDE COMPONENT dev)
file(RELATIVE_PATH dtrain_to_include /${CMAKE_INSTALL_LIBDIR}/pkgconfig
     /${CMAKE_INSTALL_INCLUDEDIR})
configure_file(runtime/dtrain.pc.in dtrain.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/dtrain.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
        COMPONENT dev)
