// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "launcher/cli/options.h"
#include "launcher/hosts/read_hostfile.h"

extern char** environ;

namespace dtrain::cli {
namespace {

// $PWD when it is this directory: it keeps the name under which other machines know it too, where
// getcwd gives that of an automounter's or a link's target.
std::string WorkingDirectory() {
  const char* pwd = getenv("PWD");
  struct stat named;
  struct stat here;
  if (pwd != nullptr && pwd[0] == '/' && stat(pwd, &named) == 0 && stat(".", &here) == 0 &&
      named.st_dev == here.st_dev && named.st_ino == here.st_ino) {
    return pwd;
  }
  char* path = getcwd(nullptr, 0);
  std::string result = path == nullptr ? "" : path;
  free(path);
  return result;
}

}  // namespace

Surroundings ProcessSurroundings() {
  Surroundings surroundings;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    surroundings.environment.emplace_back(*entry);
  }
  surroundings.working_directory = WorkingDirectory();
  surroundings.read = hosts::ReadHostfile;
  return surroundings;
}

}  // namespace dtrain::cli
