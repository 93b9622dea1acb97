# SPDX-License-Identifier: Apache-2.0
# cmake -DSOURCE=<launcher/page> -DOUT=<bytes.h> -P Page.cmake: the web page as one constant, with all of its
# parts but one word inside, and the policy that lets a browser run and apply exactly these. Optional -DHTML=<file>: the
# page itself, too, as that of a job.
set(scripts text sgr client shell job grid heat charts log job_page node node_page start)  # each uses those before it
set(limit 120000)

# What a policy calls this text: its SHA-256 in base64.
function(hash_of text out)
  string(SHA256 hex "${text}")
  string(APPEND hex 00)  # 264 bits: a multiple of 12
  set(digits "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
  set(coded)
  foreach(at RANGE 0 63 3)
    string(SUBSTRING ${hex} ${at} 3 part)
    math(EXPR high "0x${part} >> 6")
    math(EXPR low "0x${part} & 63")
    string(SUBSTRING ${digits} ${high} 1 high)
    string(SUBSTRING ${digits} ${low} 1 low)
    string(APPEND coded ${high}${low})
  endforeach()
  string(SUBSTRING ${coded} 0 43 coded)
  set(${out} "'sha256-${coded}='" PARENT_SCOPE)
endfunction()

file(STRINGS ${SOURCE}/vendor/SHA256SUMS sums)
foreach(sum ${sums})
  string(REGEX MATCH "^([0-9a-f]+)  (.+)$" matched ${sum})
  file(SHA256 ${SOURCE}/vendor/${CMAKE_MATCH_2} found)
  if(NOT found STREQUAL CMAKE_MATCH_1)
    message(FATAL_ERROR "${SOURCE}/vendor/${CMAKE_MATCH_2} is not the file that SHA256SUMS names")
  endif()
endforeach()

file(READ ${SOURCE}/page.html page)
file(READ ${SOURCE}/page.css style)
file(READ ${SOURCE}/vendor/htm-preact.js library)
set(script "(() => {\n'use strict';\n")
foreach(name ${scripts})
  file(READ ${SOURCE}/${name}.js text)
  string(APPEND script "${text}")
endforeach()
string(APPEND script "})();\n")
foreach(part style library script)
  if("${${part}}" MATCHES "</(script|style)|<!--")
    message(FATAL_ERROR "the page's ${part} has what ends it in HTML")
  endif()
  hash_of("${${part}}" ${part}_hash)
  string(TOUPPER ${part} place)
  string(REPLACE "@${place}@" "${${part}}" page "${page}")
endforeach()
string(LENGTH "${page}" size)
if(size GREATER limit)
  message(FATAL_ERROR "the page has ${size} bytes; its limit is ${limit}")
endif()

# Trusted Types: text never becomes markup or code, not even by an error in the scripts.
string(JOIN "; " policy "default-src 'none'" "script-src ${library_hash} ${script_hash}" "style-src ${style_hash}"
       "connect-src 'self'" "img-src data:" "base-uri 'none'" "form-action 'none'" "frame-ancestors 'none'"
       "require-trusted-types-for 'script'" "trusted-types 'none'")
string(FIND "${page}" "@SHOWS@" at)
string(SUBSTRING "${page}" 0 ${at} before)
math(EXPR at "${at} + 7")
string(SUBSTRING "${page}" ${at} -1 after)
string(CONCAT text "#pragma once\n#include <string_view>\n"
       "inline constexpr std::string_view kBeforeShows = R\"dtrain_page(${before})dtrain_page\";\n"
       "inline constexpr std::string_view kAfterShows = R\"dtrain_page(${after})dtrain_page\";\n"
       "inline constexpr std::string_view kTextPolicy = \"${policy}\";\n")
file(WRITE ${OUT} "${text}")
if(HTML)
  file(WRITE ${HTML} "${before}job${after}")
  file(WRITE ${HTML}.policy "${policy}")
endif()
