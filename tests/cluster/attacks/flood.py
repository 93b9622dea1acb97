# SPDX-License-Identifier: Apache-2.0
"""flood.py MIB HOW: as mallory, takes the socket of her shepherd to its launcher and says on it so many
megabytes of warnings, as states, of which there may be any number. HOW: "read", or "unread" when her
launcher is stopped meanwhile. Prints how many megabytes were taken."""
import os
import select
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(__file__))
import own_job  # noqa: E402

EACH = 32 << 10
PER_MIB = (1 << 20) // EACH
PATIENCE = 60

count, how = int(sys.argv[1]), sys.argv[2]
job = own_job.start()
shepherd = own_job.find(own_job.is_shepherd)
own_job.find(own_job.is_worker)
fd = own_job.take_link(shepherd)
if how == "unread":
    job.send_signal(signal.SIGSTOP)
warning = own_job.said(own_job.field(10, own_job.field(1, b"x" * EACH))) * PER_MIB
taken = 0
end = time.monotonic() + PATIENCE
try:
    while taken < count and time.monotonic() < end:
        left = memoryview(warning)
        while left and time.monotonic() < end:
            try:
                left = left[os.write(fd, left):]
            except BlockingIOError:
                select.select([], [fd], [], 1)
        taken += 1
except OSError:
    pass  # the agent has had enough
print(taken, flush=True)
job.send_signal(signal.SIGCONT)
own_job.end(job)
