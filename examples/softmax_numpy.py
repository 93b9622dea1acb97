#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Softmax regression on scikit-learn's digits with numpy and dtrain, in the pattern of Horovod.

Runs alone, and on many ranks under `dtrain launch`; see README.md beside it.
"""

import argparse

import numpy as np
from sklearn.datasets import load_digits

import dtrain


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=16, help="samples per step and rank")
    parser.add_argument("--rate", type=float, default=0.1, help="learning rate of one rank")
    parser.add_argument("--warmup", type=int, default=2, help="epochs until the full rate")
    parser.add_argument("--checkpoint", help="rank 0 writes the parameters to this .npz file")
    return parser.parse_args()


def load_data():
    """Images with values from 0 to 1 and a 1 for the bias, and their digits."""
    digits = load_digits()
    images = np.hstack([digits.data / 16, np.ones((len(digits.data), 1))])
    order = np.random.default_rng(0).permutation(len(images))
    test, train = order[:360], order[360:]
    return (images[train], digits.target[train]), (images[test], digits.target[test])


def loss_and_gradient(weights, images, labels):
    scores = images @ weights
    scores -= scores.max(axis=1, keepdims=True)
    shares = np.exp(scores)
    shares /= shares.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = -np.log(shares[rows, labels]).mean()
    shares[rows, labels] -= 1
    return loss, images.T @ shares / len(labels)


def rate_at(progress, arguments):
    """The rate grows with the number of ranks, and to that over the first epochs."""
    warm = min(1.0, progress / arguments.warmup) if arguments.warmup else 1.0
    return arguments.rate * (1 + warm * (dtrain.size() - 1))


def train(weights, data, arguments):
    images, labels = data
    sampler = dtrain.DistributedSampler(images)
    steps = len(sampler) // arguments.batch
    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)
        mine = np.fromiter(sampler, int)[: steps * arguments.batch]
        losses = []
        for step, batch in enumerate(mine.reshape(steps, arguments.batch)):
            with dtrain.mark("compute"):
                loss, gradient = loss_and_gradient(weights, images[batch], labels[batch])
            dtrain.allreduce_(gradient)
            weights -= rate_at(epoch + step / steps, arguments) * gradient
            losses.append(loss)
        loss = dtrain.metric_average(np.mean(losses))
        if dtrain.rank() == 0:
            print(f"epoch {epoch} loss {loss:.4f}", flush=True)


def accuracy(weights, data):
    """Every rank looks at a part of the test set."""
    images, labels = (part[dtrain.rank() :: dtrain.size()] for part in data)
    right = np.array([np.sum((images @ weights).argmax(axis=1) == labels), len(labels)])
    right = dtrain.allreduce(right, op=dtrain.Sum)
    return right[0] / right[1]


def main():
    arguments = parse_arguments()
    dtrain.init()
    training, testing = load_data()
    # Different on purpose: all start from rank 0's.
    weights = np.random.default_rng(dtrain.rank()).normal(scale=0.01, size=(65, 10))
    dtrain.broadcast_parameters({"weights": weights})
    train(weights, training, arguments)
    share = accuracy(weights, testing)
    if dtrain.rank() == 0:
        if arguments.checkpoint:
            np.savez(arguments.checkpoint, weights=weights)
        print(f"ranks {dtrain.size()} accuracy {share:.4f}", flush=True)


if __name__ == "__main__":
    main()
