# SPDX-License-Identifier: Apache-2.0
"""write_log.py: as mallory, launches a job, takes the stderr of her shepherd and writes there what looks
like a line of the agent's, ten thousand times; then she tries to close it and to cut it. Prints "done"."""
import contextlib
import os
import select
import socket
import sys

sys.path.insert(0, os.path.dirname(__file__))
import own_job  # noqa: E402

FORGED = b'2026-11-24T00:00:00.000 dtrain-agent[1] info: allowed who="user:root" forged\n'

job = own_job.start()
fd = own_job.take(own_job.find(own_job.is_shepherd), 2)
for _ in range(10_000):
    try:
        os.write(fd, FORGED)
    except BlockingIOError:
        select.select([], [fd], [], 0.0005)  # nobody reads more than its share: this line is not written
with contextlib.suppress(OSError):
    os.ftruncate(fd, 0)
with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as end:
    end.shutdown(socket.SHUT_RDWR)
own_job.end(job)
print("done")
