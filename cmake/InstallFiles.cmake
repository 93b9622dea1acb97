# SPDX-License-Identifier: Apache-2.0
# All that is installed but programs and libraries, by component: each is a package. From the sources in
# DTRAIN_SOURCE_DIR, with the manual pages and completion in the folder `reference`.
set(CMAKE_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

install(PROGRAMS ${DTRAIN_SOURCE_DIR}/deploy/pki/dtrain-pki TYPE BIN COMPONENT launcher OPTIONAL)
install(DIRECTORY ${reference}/man1 TYPE MAN COMPONENT launcher)
install(DIRECTORY ${reference}/bash-completion ${reference}/zsh ${reference}/fish TYPE DATA
        COMPONENT launcher)
install(DIRECTORY ${DTRAIN_SOURCE_DIR}/docs/ DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/dtrain COMPONENT launcher
        FILES_MATCHING PATTERN "*.md" PATTERN "*.svg" PATTERN "benchmarks.json" PATTERN man EXCLUDE)
install(DIRECTORY ${DTRAIN_SOURCE_DIR}/examples DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/dtrain COMPONENT launcher
        PATTERN "__pycache__" EXCLUDE)

install(DIRECTORY ${reference}/man8 TYPE MAN COMPONENT agent)
# The units name the agent by its full path, known only when it is installed.
install(FILES ${DTRAIN_SOURCE_DIR}/deploy/systemd/dtrain-agent.service ${DTRAIN_SOURCE_DIR}/deploy/systemd/dtrain-agent.socket
        DESTINATION lib/systemd/system COMPONENT agent)
install(FILES ${DTRAIN_SOURCE_DIR}/deploy/systemd/user/dtrain-agent.service
        DESTINATION lib/systemd/user COMPONENT agent)
install(CODE [[
  foreach(unit system user)
    set(unit $ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/lib/systemd/${unit}/dtrain-agent.service)
    file(READ ${unit} text)
    string(REPLACE "=/usr/bin/" "=${CMAKE_INSTALL_PREFIX}/bin/" text "${text}")
    file(WRITE ${unit} "${text}")
  endforeach()]] COMPONENT agent)

install(DIRECTORY ${DTRAIN_SOURCE_DIR}/runtime/include/dtrain TYPE INCLUDE COMPONENT dev)
file(RELATIVE_PATH dtrain_to_include /${CMAKE_INSTALL_LIBDIR}/pkgconfig
     /${CMAKE_INSTALL_INCLUDEDIR})
configure_file(${DTRAIN_SOURCE_DIR}/runtime/dtrain.pc.in dtrain.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/dtrain.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
        COMPONENT dev)
