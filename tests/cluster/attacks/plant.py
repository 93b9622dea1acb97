# SPDX-License-Identifier: Apache-2.0
"""plant.py KIND PATH TARGET: as mallory, puts a link to TARGET, a FIFO or a file of hers where somebody
else is about to write, and reads what comes until standard input ends. Prints "planted", then how many
bytes she has."""
import os
import select
import sys

kind, path, target = sys.argv[1:]
os.umask(0)
if kind == "link":
    os.symlink(target, path)
elif kind == "fifo":
    os.mkfifo(path, 0o666)
else:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK) if kind != "link" else None
print("planted", flush=True)
got = 0
while not select.select([0], [], [], 0.05)[0]:
    if reader is not None:
        try:
            got += len(os.read(reader, 65536))
        except BlockingIOError:
            pass
if reader is not None:
    got += len(os.read(reader, 65536) if kind == "file" else b"")
print(got)
os.unlink(path)
