// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/help.h"

namespace dtrain::cli {

Page GeneralPage() {
  Page page;
  page.command = "dtrain";
  page.text = "dtrain runs one program on many machines, as one job.\n";
  page.usage = "dtrain COMMAND ...";
  page.list_title = "Commands";
  page.list = {
      {"launch", "start a job and wait for its end"},
      {"ps", "list the jobs that run"},
      {"status", "show what a job and its ranks do"},
      {"top", "show it again every second"},
      {"logs", "print what a rank has written; -f: and what it writes"},
      {"stop", "end a job"},
      {"nodes", "show nodes: cores, GPUs, jobs"},
      {"bench", "measure communication and scaling"},
      {"completion", "print what makes a shell complete dtrain's words"},
      {"man", "print a manual page"},
      {"version", "print the version"},
  };
  page.examples = R"(  dtrain launch -np 4 python train.py
  dtrain launch --hostfile hosts.txt python train.py
  dtrain launch -H node1:8,node2:8 -x NCCL_DEBUG=INFO python train.py
)";
  page.notes = "dtrain COMMAND --help tells the flags of a command.\n";
  page.operand = Page::Operand::kListed;
  return page;
}

Page LaunchPage() {
  Page page;
  page.command = "dtrain launch";
  page.text = "Starts a job on this machine or on a list of hosts, and waits for its end.\n";
  page.usage = "dtrain launch [FLAGS] [--] COMMAND [ARGUMENTS...]";
  page.more =
      "All after the first word that is no flag is the command; its own flags are left alone.\n";
  page.examples =
      R"(  dtrain launch -np 4 python train.py                      4 ranks on this machine
  dtrain launch --hostfile hosts.txt python train.py       as many as there are slots
  dtrain launch -H node1:8,node2:8 --ppn 4 ./program       4 on each of two hosts
  dtrain launch --hostfile hosts.txt --dry-run ./program   show what would run where
)";
  page.flags = LaunchFlags();
  page.notes =
      R"(A flag can also be given as a variable, --start-timeout as DTRAIN_START_TIMEOUT, or in the
configuration file, as start-timeout = "5m" below [launch]. The command line is stronger than a
variable, a variable than the file. Times are 30, 30s, 500ms, 2m, 1h.

The exit code is that of the first rank that failed; 0 when all went well. Codes from 200 are
dtrain's own; 2 is a mistake on the command line or in a file it names.
)";
  page.operand = Page::Operand::kProgram;
  return page;
}

}  // namespace dtrain::cli
