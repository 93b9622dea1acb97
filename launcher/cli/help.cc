// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/help.h"

namespace dtrain::cli {

Page LaunchPage() {
  Page page;
  page.command = "dtrain launch";
  page.text = "Starts a job on this machine or on a list of hosts, and waits for it to finish.\n";
  page.usage = "dtrain launch [FLAGS] [--] COMMAND [ARGUMENTS...]";
  page.more =
      "The command begins at the first word that is not a flag, or after --. It is passed on\n"
      "unchanged, with its own flags. A file that ends in .py and is not executable is run by\n"
      "python3 -u.\n";
  page.examples =
      R"(  dtrain launch -np 4 train.py                             4 ranks on this machine
  dtrain launch --hostfile hosts.txt -m package.train      as many ranks as there are slots
  dtrain launch -H node1:8,node2:8 --ppn 4 ./program       4 ranks on each of two hosts
  dtrain launch --hostfile hosts.txt --dry-run ./program   show what would run where
)";
  page.flags = LaunchFlags();
  page.common = {"hostfile", "hosts",         "nnodes",  "np",           "ppn",      "export",
                 "wdir",     "module",        "rsh",     "tag-output",   "log-dir",  "verbose",
                 "quiet",    "dry-run",       "stage",   "max-restarts", "detach",   "name",
                 "grace",    "start-timeout", "timeout", "help",         "help-all", "agent"};
  page.notes =
      R"(A flag can also be set as a variable (DTRAIN_START_TIMEOUT for --start-timeout) or in the
configuration file (start-timeout = "5m" under [launch]). The command line overrides variables,
and variables override the file. Times are written 30, 30s, 500ms, 2m or 1h.

The exit code is that of the first rank that failed, or 0 if all succeeded. Codes from 200 on are
dtrain's own; 2 means a mistake on the command line or in a file that it names.
)";
  page.operand = Page::Operand::kProgram;
  return page;
}

}  // namespace dtrain::cli
