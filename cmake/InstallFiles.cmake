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
set(systemd ${DTRAIN_SOURCE_DIR}/deploy/systemd)
install(PROGRAMS ${systemd}/setup DESTINATION libexec/dtrain COMPONENT agent)
install(FILES ${systemd}/sysusers.conf DESTINATION lib/sysusers.d RENAME dtrain.conf COMPONENT agent)
# The units name the programs by their full path, known only when they are installed.
install(FILES ${systemd}/dtrain-agent.service ${systemd}/dtrain-agent.socket ${systemd}/dtrain-agent-root.service
        ${systemd}/dtrain-spawner.service DESTINATION lib/systemd/system COMPONENT agent)
install(FILES ${systemd}/user/dtrain-agent.service DESTINATION lib/systemd/user COMPONENT agent)
install(CODE [[
  foreach(unit system/dtrain-agent system/dtrain-agent-root system/dtrain-spawner user/dtrain-agent)
    set(unit $ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/lib/systemd/${unit}.service)
    file(READ ${unit} text)
    string(REGEX REPLACE "/usr/(bin|libexec)/dtrain" "${CMAKE_INSTALL_PREFIX}/\\1/dtrain" text "${text}")
    file(WRITE ${unit} "${text}")
  endforeach()]] COMPONENT agent)

install(DIRECTORY ${DTRAIN_SOURCE_DIR}/runtime/include/dtrain TYPE INCLUDE COMPONENT dev)
file(RELATIVE_PATH dtrain_to_include /${CMAKE_INSTALL_LIBDIR}/pkgconfig
     /${CMAKE_INSTALL_INCLUDEDIR})
configure_file(${DTRAIN_SOURCE_DIR}/runtime/dtrain.pc.in dtrain.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/dtrain.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
        COMPONENT dev)
