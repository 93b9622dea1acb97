# SPDX-License-Identifier: Apache-2.0
"""make_cgroups.py COUNT: as mallory, in a job of hers, makes so many cgroups below the one that the agent
gave her, and as deep as she may. Prints how many there are, how deep, and how the first refusal was."""
import errno
import os
import sys

MOUNT = "/sys/fs/cgroup"


def fill(path, deeper):
    made, why = 0, "none"
    try:
        while made < int(sys.argv[1]):
            path_of_next = f"{path}/{'deep' if deeper else 'wide'}{os.getpid()}-{made}"
            os.mkdir(path_of_next)
            made += 1
            if deeper:
                path = path_of_next
    except OSError as error:
        why = errno.errorcode[error.errno]
    return made, why


with open("/proc/self/cgroup") as text:
    own = next(line.rstrip("\n")[3:] for line in text if line.startswith("0::"))
while not os.path.basename(own).startswith("dtrain-shepherd-"):
    own = os.path.dirname(own)
    assert own != "/", "no cgroup of hers"
deep = fill(MOUNT + own, True)
wide = fill(MOUNT + own, False) if deep[1] != "none" else deep
print("made", deep[0], deep[1], wide[0], wide[1], flush=True)
