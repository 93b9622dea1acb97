# SPDX-License-Identifier: Apache-2.0
"""One rank raises an exception within PyTorch's `record`; the others wait to be ended."""
import os
import signal
import sys

from torch.distributed.elastic.multiprocessing.errors import record


def give_up(loss):
    raise FloatingPointError(f"loss is {loss} in step 17")


@record
def main():
    if os.environ["RANK"] != sys.argv[1]:
        signal.pause()
    if "quiet" in sys.argv:  # as programs whose stderr goes to a file of their own
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    give_up(float("nan"))


main()
