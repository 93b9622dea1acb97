#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's MultiWorkerMirroredStrategy, which reads TF_CONFIG. Knows nothing of dtrain; see
README.md beside it.
"""

import numpy as np
import tensorflow as tf


def main():
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Input((3,)), tf.keras.layers.Dense(1)])
        model.compile(optimizer=tf.keras.optimizers.SGD(0.1), loss="mse")
    inputs = np.random.default_rng(0).normal(size=(1024, 3)).astype(np.float32)
    outputs = inputs @ np.array([[1.0], [-2.0], [0.5]], np.float32)
    data = tf.data.Dataset.from_tensor_slices((inputs, outputs)).batch(64).repeat()
    history = model.fit(data, epochs=4, steps_per_epoch=32, verbose=0)
    task = strategy.cluster_resolver
    print(f"{task.task_type} {task.task_id} of {strategy.num_replicas_in_sync} replicas: "
          f"loss {history.history['loss'][-1]:.6f}", flush=True)


if __name__ == "__main__":
    main()
