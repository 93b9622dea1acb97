# SPDX-License-Identifier: Apache-2.0
# Debian packages by CPack, one for each component: tools/package makes them.
set(debian ${CMAKE_BINARY_DIR}/debian)

# Python's package is laid out by tools/package from the wheel; `pip install runtime/python` is the
# way without packages.
install(DIRECTORY ${debian}/python/ DESTINATION lib/python3/dist-packages COMPONENT python
        EXCLUDE_FROM_ALL)
install(DIRECTORY ${debian}/wheel/ DESTINATION ${CMAKE_INSTALL_DATADIR}/python-wheels
        COMPONENT python EXCLUDE_FROM_ALL)
# A node's configuration is of the node: only its package brings one.
install(FILES deploy/systemd/agent.conf DESTINATION /etc/dtrain COMPONENT agent EXCLUDE_FROM_ALL)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME dtrain)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "dtrain maintainers <maintainers@users.noreply.a-seed-1e9bb397.example>")
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR}/packages)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_COMPONENTS_ALL launcher agent runtime dev python)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_BINARY_DIR}/lib)
set(same "(= ${PROJECT_VERSION}-1)")

# dtrain_package(COMPONENT NAME SECTION "summary" "description" [CONTROL file...]): the component's
# package, with the two files that Debian asks of each. Descriptions as in debian/control.
function(dtrain_package component name section summary description)
  cmake_parse_arguments(ARG "" "" "CONTROL" ${ARGN})
  string(TOUPPER ${component} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${name} PARENT_SCOPE)
  set(CPACK_DEBIAN_${upper}_PACKAGE_SECTION ${section} PARENT_SCOPE)
  set(CPACK_COMPONENT_${upper}_DESCRIPTION "${summary}\n${description}" PARENT_SCOPE)
  list(TRANSFORM ARG_CONTROL PREPEND ${CMAKE_SOURCE_DIR}/deploy/debian/${component}/)
  set(CPACK_DEBIAN_${upper}_PACKAGE_CONTROL_EXTRA "${ARG_CONTROL}" PARENT_SCOPE)
  if(EXISTS ${CMAKE_SOURCE_DIR}/deploy/debian/${component}/lintian-overrides)
    install(FILES deploy/debian/${component}/lintian-overrides RENAME ${name}
            DESTINATION ${CMAKE_INSTALL_DATADIR}/lintian/overrides COMPONENT ${component}
            EXCLUDE_FROM_ALL)
  endif()
  install(FILES deploy/debian/copyright ${debian}/changelog.Debian.gz
          DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${name} COMPONENT ${component} EXCLUDE_FROM_ALL)
endfunction()

dtrain_package(launcher dtrain utils "start distributed training jobs over ssh"
"dtrain takes a list of hosts to a running job with one command, and its exit
code tells how the job went. It needs no scheduler, no shared file system and
nothing on the nodes but an ssh login. PyTorch DDP, MPI and other
programs that expect a launcher's environment run unchanged.")
set(CPACK_DEBIAN_LAUNCHER_PACKAGE_DEPENDS "dtrain-agent ${same}, libdtrain0 ${same}, libssh-4")
set(CPACK_DEBIAN_LAUNCHER_PACKAGE_RECOMMENDS "openssl")
set(CPACK_DEBIAN_LAUNCHER_PACKAGE_SUGGESTS "libdtrain-dev, python3-dtrain")
set(CPACK_DEBIAN_LAUNCHER_PACKAGE_SHLIBDEPS ON)

dtrain_package(agent dtrain-agent net "agent of dtrain, resident or sent to a node"
"The agent starts and watches the workers of dtrain's jobs on one machine. The
launcher sends it to nodes that have none. A resident agent, which systemd can
start, launches faster, keeps jobs apart and answers for its node. Nothing is
enabled by installing it."
  CONTROL postinst prerm postrm conffiles)
set(CPACK_DEBIAN_AGENT_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_AGENT_PACKAGE_SUGGESTS "libpmix2")

dtrain_package(runtime libdtrain0 libs "all-reduce for the workers of a dtrain job"
"libdtrain adds up gradients, and does other collective operations, within a
node by shared memory, between nodes by TCP, and on GPUs by NCCL, which it
opens when it is there."
  CONTROL triggers)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")

dtrain_package(dev libdtrain-dev libdevel "all-reduce for the workers of a dtrain job, headers"
"What is needed to compile programs that use libdtrain, from C or C++.")
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "libdtrain0 ${same}")

dtrain_package(python python3-dtrain python "distributed training by dtrain from Python 3"
"The package dtrain for Python 3: Horovod's functions on libdtrain, and jobs
started from a program or notebook. Its wheel is there, too, for virtual
environments."
  CONTROL postinst prerm)
set(CPACK_DEBIAN_PYTHON_PACKAGE_DEPENDS "python3:any, libdtrain0 (>= ${PROJECT_VERSION}-1)")
set(CPACK_DEBIAN_PYTHON_PACKAGE_RECOMMENDS "dtrain, python3-numpy")
set(CPACK_DEBIAN_PYTHON_PACKAGE_SUGGESTS "python3-cloudpickle, python3-torch")
set(CPACK_DEBIAN_PYTHON_PACKAGE_ARCHITECTURE all)

include(CPack)
