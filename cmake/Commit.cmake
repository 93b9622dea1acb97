# SPDX-License-Identifier: Apache-2.0
# cmake -DSOURCE=... -DOUT=commit.h -P Commit.cmake: the commit that is built, for `dtrain version --verbose`;
# empty outside of a repository. The file is written only when that changes.
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE rc)
if(NOT rc EQUAL 0)
  set(commit)
endif()
set(text "#pragma once\ninline constexpr char kCommit[] = \"${commit}\";\n")
if(EXISTS ${OUT})
  file(READ ${OUT} before)
endif()
if(NOT text STREQUAL "${before}")
  file(WRITE ${OUT} "${text}")
endif()
