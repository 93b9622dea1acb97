# SPDX-License-Identifier: Apache-2.0
"""jax_detect.py WORLD: what jax.distributed.initialize() without arguments finds out, as
jax/_src/clusters/ompi_cluster.py and jax/_src/distributed.py do. Rank 0 then listens where the
coordinator would, and the others must reach it."""
import os
import re
import socket
import sys
import threading

uri = os.environ["OMPI_MCA_orte_hnp_uri"]
number, addresses = uri.split(";")[0], uri.split(";")[1]
port = int(number.split(".", maxsplit=1)[0]) // 2 ** 12 % 2 ** 12 + (65535 - 2 ** 12 + 1)
match = re.search(r"tcp://(.+?)[,:]|tcp6://\[(.+?)[,\]]", addresses)
assert match, uri
found = next(group for group in match.groups() if group)
address = os.environ.get("JAX_COORDINATOR_ADDRESS") or f"{found}:{port}"
size, rank = int(os.environ["OMPI_COMM_WORLD_SIZE"]), int(os.environ["OMPI_COMM_WORLD_RANK"])
assert size == int(sys.argv[1]) and rank == int(os.environ["DTRAIN_RANK"])
assert int(os.environ["OMPI_COMM_WORLD_LOCAL_RANK"]) == int(os.environ["DTRAIN_LOCAL_RANK"])
host, number = address.rsplit(":", 1)
assert host == found, (address, uri)
if rank == 0:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("0.0.0.0", int(number)))
    listener.listen()
    ranks = set()
    while len(ranks) < size - 1:
        connection, _ = listener.accept()
        ranks.add(int(connection.recv(100)))
        connection.close()
    assert ranks == set(range(1, size))
else:
    for attempt in range(600):
        try:
            connection = socket.create_connection((host, int(number)), 30)
            break
        except ConnectionRefusedError:
            threading.Event().wait(0.05)
    connection.sendall(str(rank).encode())
    assert connection.recv(1) == b""
print(f"process {rank} of {size} is right", flush=True)
