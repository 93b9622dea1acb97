# SPDX-License-Identifier: Apache-2.0
"""tf_cluster.py TYPE...: reads TF_CONFIG as TensorFlow's TFConfigClusterResolver does. The ranks must
be tasks of these types, in this order; each listens at its own address, as gRPC does, and is heard by
all the others."""
import json
import os
import socket
import sys
import threading

config = json.loads(os.environ["TF_CONFIG"])
assert set(config) == {"cluster", "task"}, config
cluster, task = config["cluster"], config["task"]
assert list(cluster) == [name for name in ("chief", "ps", "worker", "evaluator") if name in cluster]
rank = int(os.environ["RANK"])
assert task["type"] == sys.argv[1 + rank], (task, sys.argv)
before = sys.argv[1:1 + rank].count(task["type"])
assert task["index"] == before, (task, before)
everyone = [address for addresses in cluster.values() for address in addresses]
assert len(set(everyone)) == len(sys.argv) - 1, everyone

host, port = cluster[task["type"]][task["index"]].rsplit(":", 1)
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
listener.bind(("0.0.0.0", int(port)))
listener.listen()


def hear():
    for _ in everyone:
        connection, _ = listener.accept()
        connection.sendall(json.dumps(task).encode())
        connection.close()


heard = threading.Thread(target=hear)
heard.start()
for kind, addresses in cluster.items():
    for index, address in enumerate(addresses):
        there, number = address.rsplit(":", 1)
        for attempt in range(600):  # the other may not listen yet
            try:
                connection = socket.create_connection((there, int(number)), 30)
                break
            except ConnectionRefusedError:
                threading.Event().wait(0.05)
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
        assert json.loads(answer) == {"type": kind, "index": index}, (address, answer)
heard.join()
print(f"task {task['type']} {task['index']} is right", flush=True)
