# SPDX-License-Identifier: Apache-2.0
"""Elastic training with PyTorch: state of models, optimizers and samplers. See dtrain.elastic."""

from __future__ import annotations

import copy
import inspect
import io
import math
import random

import torch

import dtrain
from dtrain.elastic import HostsUpdatedInterrupt, ObjectState, State, run

from ._state import broadcast_optimizer_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator, Sized

__all__ = ["ElasticSampler", "HostsUpdatedInterrupt", "ObjectState", "State", "TorchState", "run"]


class ElasticSampler(torch.utils.data.Sampler):
    """This rank's share of a data set, which can be dealt out again within an epoch.

    After record_batch(), a new share, by load_state_dict() or reset(), has none of the samples that
    were recorded. All shares are equally long, for which some samples are used twice. Put it into the
    TorchState. Call set_epoch() at the end of each epoch, not at its beginning.

    dataset: anything with a length.
    shuffle: whether every epoch has its own order, the same on all ranks.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch, of which nothing has been processed."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Records that every rank has processed a batch of `batch_size` samples. batch_idx is ignored."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, int]:
        """The epoch, and how many of its samples have been processed."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Continues from a state_dict(), with a new share."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Deals out what has not been processed to the ranks that there are now."""
        self.num_replicas, self.rank = dtrain.size(), dtrain.rank()
        order = list(range(len(self.dataset)))
        if self.shuffle:
            # Python's own, because every rank has the same one.
            random.Random(self.seed + self.epoch).shuffle(order)
        self.remaining_indices = order[self.processed_num :]
        self.num_samples = math.ceil(len(self.remaining_indices) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        indices = self.remaining_indices
        if indices:
            indices = (indices * math.ceil(self.total_size / len(indices)))[: self.total_size]
        return iter(indices[self.rank :: self.num_replicas])

    def __len__(self) -> int:
        """The number of samples of this rank."""
        return self.num_samples


class _Handler:
    """How one kind of attribute is saved, restored and sent: by its state_dict()."""

    def __init__(self, value):
        self.set_value(value)

    def set_value(self, value):
        self.value = value
        self.save()

    def save(self):
        self._saved = copy.deepcopy(self.value.state_dict())

    def kept(self):
        return self._saved

    def take_kept(self, kept):
        self._saved = kept
        self.restore()

    def restore(self):
        # A copy: an optimizer goes on to change what it has loaded.
        self.value.load_state_dict(copy.deepcopy(self._saved))

    def sync(self):
        self.value.load_state_dict(dtrain.broadcast_object(self.value.state_dict()))


class _ModelHandler(_Handler):
    def sync(self):
        dtrain.broadcast_parameters(self.value.state_dict(), root_rank=0)


class _OptimizerHandler(_Handler):
    def sync(self):
        broadcast_optimizer_state(self.value, root_rank=0)


class _Tensors:
    """State dictionaries, pickled so that tensors of a GPU come back on the CPU: the node that
    reads them may have others. load_state_dict() puts them where they belong."""

    def __init__(self, states):
        self.states = states

    def __getstate__(self):
        file = io.BytesIO()
        torch.save(self.states, file)
        return file.getvalue()

    def __setstate__(self, data):
        # Newer versions of torch would not take what only the user's classes can read.
        known = inspect.signature(torch.load).parameters
        options = {"weights_only": False} if "weights_only" in known else {}
        self.states = torch.load(io.BytesIO(data), map_location="cpu", **options)


_HANDLERS = [
    (torch.nn.Module, _ModelHandler),
    (torch.optim.Optimizer, _OptimizerHandler),
    (ElasticSampler, _Handler),
]


def _handler_of(value):
    for kind, handler in _HANDLERS:
        if isinstance(value, kind):
            return handler(value)
    return None


class TorchState(ObjectState):
    """A state of models, optimizers, ElasticSamplers and any other objects, each an attribute.

    model, optimizer: and further ones as keywords; other objects must be picklable.
    """

    def __init__(self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None,
                 **kwargs: Any) -> None:
        everything = {"model": model, "optimizer": optimizer, **kwargs}
        handlers = {name: _handler_of(value) for name, value in everything.items()}
        self._handlers = {name: handler for name, handler in handlers.items() if handler}
        for name, handler in self._handlers.items():
            super().__setattr__(name, handler.value)
        objects: dict[str, Any] = {name: v for name, v in everything.items() if name not in self._handlers}
        super().__init__(**objects)

    def save(self) -> None:
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def kept(self) -> Any:
        states = {name: handler.kept() for name, handler in self._handlers.items()}
        return super().kept(), _Tensors(states)

    def take_kept(self, kept: Any) -> None:
        objects, tensors = kept
        for name, handler in self._handlers.items():
            handler.take_kept(tensors.states[name])
        super().take_kept(objects)

    def sync(self) -> None:
        for handler in self._handlers.values():
            handler.sync()
            handler.save()
        super().sync()

    def reset(self) -> None:
        for handler in self._handlers.values():
            if isinstance(handler.value, ElasticSampler):
                handler.value.reset()
        super().reset()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__.get("_handlers", ()):
            self._handlers[name].set_value(value)
        super().__setattr__(name, value)
