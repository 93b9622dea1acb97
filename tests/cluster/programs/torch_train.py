# SPDX-License-Identifier: Apache-2.0
"""A training by PyTorch's DDP on Gloo that goes on from its checkpoint: torch_train.py FOLDER, which all hosts share.
Each rank has an equal part of the same data, so every step has the same loss, however many ranks there are. A rank
holds a lock for as long as it lives, before all else, and ends with 99 if one of another attempt does so too."""
import fcntl
import os
import sys
import time

FOLDER = sys.argv[1]
RANK, SIZE, ATTEMPT = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"))
SAMPLES, FEATURES, RATE = 240, 8, 0.01  # which test_walk.py knows; 3 and 4 ranks can share it equally


def live():
    mine = open(f"{FOLDER}/lives.{ATTEMPT}.{RANK}", "w")
    fcntl.flock(mine, fcntl.LOCK_EX)
    for name in os.listdir(FOLDER):
        if name.startswith("lives.") and name.split(".")[1] != str(ATTEMPT):
            with open(f"{FOLDER}/{name}") as other:
                try:
                    fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    print(f"attempt {ATTEMPT}: {name} is held", file=sys.stderr, flush=True)
                    sys.exit(99)
    return mine


def data(torch):
    rows, columns = torch.arange(float(SAMPLES)).double()[:, None], torch.arange(float(FEATURES)).double()
    inputs = torch.sin(rows * (columns + 1))
    return inputs, inputs @ (columns + 1)[:, None]


def train():
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    inputs, targets = (part.chunk(SIZE)[RANK] for part in data(torch))
    module = torch.nn.Linear(FEATURES, 1, bias=False, dtype=torch.float64)
    torch.nn.init.zeros_(module.weight)
    model = torch.nn.parallel.DistributedDataParallel(module)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    step, checkpoint = 0, f"{FOLDER}/checkpoint"
    if os.path.exists(checkpoint):
        saved = torch.load(checkpoint)
        step = saved["step"]
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    print(f"rank {RANK} of {SIZE} on {os.environ['DTRAIN_HOST']}, attempt {ATTEMPT}, goes on after step {step}", flush=True)
    enough = torch.zeros(1)
    while not enough:
        loss = ((model(inputs) - targets) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        total = loss.detach().clone()
        dist.all_reduce(total)
        if RANK == 0:
            torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint + ".new")
            os.replace(checkpoint + ".new", checkpoint)
            print(f"step {step}, loss {total.item() / SIZE:.9e}", flush=True)
            enough += os.path.exists(f"{FOLDER}/enough")
        dist.broadcast(enough, 0)
        time.sleep(0.02)
    print(f"rank {RANK} has trained", flush=True)
    dist.destroy_process_group()


lives = live()  # before torch, which takes seconds to import
train()
