# SPDX-License-Identifier: Apache-2.0
"""Runs on a host of the cluster: asks a launcher or an agent there for its status at fixed moments,
whether it has answered the last time or not, over connections that stay open. Prints one JSON object.

Argument: {"socket": PATH, "tcp": [IP, PORT], "token": TEXT, "paths": [...], "rate": PER_SECOND,
"seconds": N, "connections": N of each kind}. A request's time begins when it was due.
"""
import asyncio
import json
import os
import sys
import time


class Load:
    def __init__(self, spec):
        self._spec = spec
        self.seconds = []
        self.served = []  # of each, from when it was sent: not before the last one was answered
        self.errors = []

    async def _answer(self, reader):
        head = await reader.readuntil(b"\r\n\r\n")
        length = 0
        for line in head.split(b"\r\n"):
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        await reader.readexactly(length)
        return head.split(b" ", 2)[1]

    async def _connection(self, opened, extra, dues):
        reader, writer = await opened
        for number, due in dues:
            await asyncio.sleep(max(0, due - time.monotonic()))
            path = self._spec["paths"][number % len(self._spec["paths"])]
            sent = time.monotonic()
            writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{extra}\r\n".encode())
            try:
                status = await self._answer(reader)
            except (OSError, EOFError) as error:
                self.errors.append(repr(error))
                return
            if status != b"200":
                self.errors.append(status.decode())
            self.seconds.append(time.monotonic() - due)
            self.served.append(time.monotonic() - sent)
        writer.close()

    async def run(self):
        spec = self._spec
        start = time.monotonic() + 0.2
        dues = [(n, start + n / spec["rate"]) for n in range(spec["rate"] * spec["seconds"])]
        each = spec["connections"]
        token = f"Authorization: Bearer {spec['token']}\r\n"
        kinds = [(asyncio.open_unix_connection(spec["socket"]), "") for _ in range(each)]
        kinds += [(asyncio.open_connection(*spec["tcp"]), token) for _ in range(each)]
        # No two neighbours by the same connection.
        await asyncio.gather(*(self._connection(opened, extra, dues[i::2 * each])
                               for i, (opened, extra) in enumerate(kinds)))


def never_wait_for_a_core():
    """It plays other machines, which would not wait for ours. Niceness would count among the processes
    of its own session only."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:  # as in a container without real-time priorities
        os.nice(-15)


def main():
    never_wait_for_a_core()
    load = Load(json.loads(sys.argv[1]))
    asyncio.run(load.run())
    print(json.dumps({"seconds": load.seconds, "served": load.served, "errors": load.errors,
                      "cpu": sum(os.times()[:2])}))


main()
