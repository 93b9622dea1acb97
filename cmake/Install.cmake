# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts where. Packages (deploy/packages) have the same from InstallFiles.cmake, and
# portable programs.

# Manual pages and completion, written by the program that they are of.
file(GLOB handwritten CONFIGURE_DEPENDS docs/man/*)
set(reference ${CMAKE_BINARY_DIR}/reference)
add_custom_command(
  OUTPUT ${reference}/written
  COMMAND sh ${CMAKE_SOURCE_DIR}/cmake/write_reference.sh $<TARGET_FILE:dtrain> ${reference}
  DEPENDS dtrain cmake/write_reference.sh ${handwritten}
  WORKING_DIRECTORY ${CMAKE_SOURCE_DIR} VERBATIM)
add_custom_target(dtrain_reference ALL DEPENDS ${reference}/written)

install(TARGETS dtrain dtrain-allreduce dtrain-agent)
install(TARGETS dtrain-spawner DESTINATION libexec/dtrain)
# Its user must not be able to read it (docs/adr/0030).
install(TARGETS dtrain-shepherd DESTINATION libexec/dtrain
        PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_EXECUTE WORLD_EXECUTE)
install(TARGETS dtrain_runtime LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
set(DTRAIN_SOURCE_DIR ${CMAKE_SOURCE_DIR})
include(InstallFiles)
