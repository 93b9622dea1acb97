# SPDX-License-Identifier: Apache-2.0
"""A training by dtrain.elastic: elastic_steps.py STEPS. Says where it begins; its first attempt waits at step 30 for
ever."""
import os
import sys
import time

import dtrain
from dtrain import elastic


@elastic.run
def train(state):
    print(f"attempt {os.environ['DTRAIN_ATTEMPT']} of {dtrain.size()} begins at {state.step}", flush=True)
    while state.step < int(sys.argv[1]):
        state.step += 1
        state.total += dtrain.allreduce(state.step)
        state.commit()
        if os.environ["DTRAIN_ATTEMPT"] == "0" and state.step == 30:
            print(f"at step {state.step}", flush=True)
            while True:
                time.sleep(600)
    return state.total


dtrain.init()
print(f"total {train(elastic.ObjectState(step=0, total=0.0)):.0f}", flush=True)
