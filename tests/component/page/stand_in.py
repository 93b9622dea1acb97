# SPDX-License-Identifier: Apache-2.0
"""A stand-in for a launcher's status server: serves the page as the binary has it, and answers as recorded
or as a test says. It can fall silent, refuse, and end."""
import http.server
import json
import threading
import urllib.parse

LEVELS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def columns(job, version, full):
    """An answer of /columns about `job`, which has whole columns."""
    states = job["states"]
    counts = {"waiting": states.count("w"), "running": sum(map(states.count, "rch")),
              "ended": sum(map(states.count, "dfkl")), "failed": states.count("f")}
    out = {"version": version, "full": full, "state": job["state"], "phase": job["phase"], "seconds": job["seconds"],
           "world_size": len(states), "ranks": counts, "waiting_for": job.get("waiting_for", []),
           "waiting_more": job.get("waiting_more", 0)}
    if "restarts" in job:
        out["restarts"] = job["restarts"]
    if full:
        out["rank"] = {"state": states, "pid": job["pids"], "exit": job.get("exits", {}), "node": job["node_of"]}
        out["node"] = {"host": job["hosts"], "state": job["node_states"]}
    return out


def make_job(ranks, of_node=8, **changes):
    nodes = -(-ranks // of_node)
    job = {"id": "dtrain-0123456789ab", "command": ["python3", "train.py", "--epochs", "90"], "state": "running", "phase": "run",
           "seconds": 3725.0, "states": "r" * ranks, "pids": [4000 + n for n in range(ranks)],
           "node_of": [n // of_node for n in range(ranks)], "hosts": [f"node{n}" for n in range(nodes)],
           "node_states": "j" * nodes,
           "events": [{"id": 1, "seconds": 0, "kind": "phase", "text": "connect"},
                      {"id": 2, "seconds": 0.41, "kind": "phase", "text": "check network"},
                      {"id": 3, "seconds": 0.46, "kind": "phase", "text": "reserve ports"},
                      {"id": 4, "seconds": 0.47, "kind": "phase", "text": "start"},
                      {"id": 5, "seconds": 0.92, "kind": "phase", "text": "run"}],
           "late": [], "logs": {}}
    job.update(changes)
    return job


class StandIn(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, page, policy, job, token="secret"):
        super().__init__(("127.0.0.1", 0), Handler)
        self.page, self.policy, self.job, self.token = page, policy, job, token
        self.version = 1
        self.change = {}          # what /columns answers with besides, once
        self.is_silent = threading.Event()
        self.over = threading.Event()
        self.asked = []           # paths
        self.bytes = {}           # answered, by path without its query
        self.wake = threading.Condition()
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def url(self, token=None):
        return f"http://127.0.0.1:{self.server_port}/" + (f"#t={token}" if token else "")

    def say(self, **event):
        with self.wake:
            self.job["events"].append({"id": len(self.job["events"]) + 1, "seconds": self.job["seconds"], **event})
            self.wake.notify_all()

    def write(self, rank, stream, data):
        with self.wake:
            logs = self.job["logs"]
            logs[rank, stream] = logs.get((rank, stream), b"") + data
            job_order = self.job.setdefault("order", {}).setdefault(rank, [])
            job_order.append([stream, len(logs[rank, stream])])
            self.wake.notify_all()

    def alter(self, **changes):
        self.job.update(changes)
        self.version += 1

    def end(self, exit_code, verdict, report, **more):
        self.job.update(state="finished", phase="end")
        self.say(kind="ended", exit_code=exit_code, verdict=verdict, report=report, **more,
                 columns=columns(self.job, self.version + 1, True))
        self.over.set()
        with self.wake:
            self.wake.notify_all()

    def handle_error(self, request, client_address):
        pass  # browsers hang up


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "dtrain"

    def log_message(self, *_):
        pass

    def answer(self, status, body, kind="application/json", policy="default-src 'none'"):
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        path = self.path.partition("?")[0]
        self.server.bytes.setdefault(path, []).append(len(body))
        self.send_response(status)
        for name, value in (("Content-Type", kind), ("Content-Length", len(body)), ("Content-Security-Policy", policy),
                            ("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff"),
                            ("Cross-Origin-Opener-Policy", "same-origin")):
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)

    def stream(self, next_piece):
        """Pieces until None; `next_piece` is called with the lock, and waits by itself."""
        self.send_response(200)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while True:
            with self.server.wake:
                piece = next_piece()
                while piece == b"":
                    self.server.wake.wait(1)
                    if self.server.is_silent.is_set():
                        self.close_connection = True
                        return
                    piece = next_piece()
            if piece is None:
                self.wfile.write(b"0\r\n\r\n")
                return
            self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            self.wfile.flush()

    def do_GET(self):
        server, job = self.server, self.server.job
        path, _, query = self.path.partition("?")
        path = urllib.parse.unquote(path)
        asked = dict(urllib.parse.parse_qsl(query))
        if path == "/":
            return self.answer(200, server.page, "text/html; charset=utf-8", server.policy)
        server.asked.append(self.path)
        if server.is_silent.is_set():
            self.close_connection = True
            return None
        if self.headers["Authorization"] != f"Bearer {server.token}":
            return self.answer(401, {"error": "send the token: Authorization: Bearer TOKEN"})
        if "node" in job:
            return self.answer(200, job["node"]) if path == "/v1/node" else self.answer(404, {"error": "there is no such page"})
        top = f"/v1/jobs/{job['id']}"
        if path == "/v1/jobs":
            view = {**columns(job, server.version, False), "id": job["id"], "command": job["command"], "launcher_pid": 7,
                    "begin_unix_s": 1.7e9, "nodes": len(job["hosts"]), "phases": [], "warnings": []}
            return self.answer(200, {"jobs": [view]})
        if path == f"{top}/columns":
            full = asked["since"] != str(server.version)
            return self.answer(200, columns(job, server.version, full))
        if path == f"{top}/series":
            first = int(asked["since"])
            return self.answer(200, {"seconds": 10, "first": first, "late": job["late"][first:]})
        if path == f"{top}/gpus":
            first, bins = int(asked["since"]), job.get("gpu_bins", 0)
            return self.answer(200, {"seconds": 10, "first": first, "gpus": [
                {**gpu, **{name: values[first:bins] for name, values in gpu.items() if isinstance(values, list)}}
                for gpu in job.get("gpus", [])]})
        if path == f"{top}/events":
            at = [int(asked["since"])]

            def next_event():
                if at[0] < len(job["events"]):
                    at[0] += 1
                    return json.dumps(job["events"][at[0] - 1]).encode() + b"\n"
                return None if server.over.is_set() else b""
            return self.stream(next_event)
        parts = path.removeprefix(f"{top}/ranks/").split("/")
        rank = int(parts[0])
        if rank >= len(job["states"]):
            return self.answer(404, {"error": "the job has no such rank"})
        begin = {"stdout": 0, "stderr": 0, **job.get("kept_from", {})}
        sizes = {stream: {"begin": begin[stream], "end": len(job["logs"].get((rank, stream), b""))} for stream in begin}
        sizes["order"] = job.get("order", {}).get(rank, [])
        if len(parts) == 1:
            return self.answer(200, {"rank": rank, "host": job["hosts"][job["node_of"][rank]], "state": "running",
                                     "pid": job["pids"][rank], "log": sizes, **job.get("detail", {})})
        offset = int(asked["offset"])
        if offset < begin[asked["stream"]]:
            return self.answer(410, {"error": f"only bytes from {begin[asked['stream']]} on are kept"})
        data = job["logs"].get((rank, asked["stream"]), b"")[offset:offset + int(asked["limit"])]
        return self.answer(200, data, "application/octet-stream")
