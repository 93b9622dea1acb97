# SPDX-License-Identifier: Apache-2.0
"""Functions of torch.distributed that the backend takes part in, though torch does not ask it there."""

import functools
import os
import re

import torch.distributed as dist

_c10d = dist.distributed_c10d
# (key, what the rendezvous gave) of the last default group over env://: while it is made, and once it is one of dtrain's.
_found = _kept = None
_uses = 0


def replace(name, wrapped):
    """Whether torch has such a function. Those that have been imported by their names already are not replaced."""
    was = getattr(_c10d, name, None)
    if was is None:
        return False
    now = functools.wraps(was)(wrapped(was))
    setattr(_c10d, name, now)
    if getattr(dist, name, None) is was:
        setattr(dist, name, now)
    return True


def with_other_ranks(backend, meet):
    """For the function that makes groups, which calls a backend on their members only: calls `meet`, with the ranks and
    the group's name, on the other ranks. It also sees whether a default group is dtrain's, for at_kept_store()."""

    def wrapped(make):
        def made(size, rank, ranks, name, *args, **kwargs):
            global _found, _kept
            ours = backend in re.split("[:,]", str(name).lower())
            found, _found = _found, None
            result = make(size, rank, ranks, name, *args, **kwargs)
            if ours and not ranks:
                _kept = found or _kept
            elif ours and dist.get_rank() not in ranks:
                meet(list(ranks), kwargs.get("group_name", args[1] if len(args) > 1 else None))
            return result

        return made

    return wrapped


def at_kept_store(rendezvous):
    """For rendezvous(): after a default group of dtrain's, the ranks meet at the same store again.

    Torch makes a new one at the same address, where some ranks still find the old one, which then ends beneath them, or
    finds the old keys in it (pytorch/pytorch#55967).
    """

    def found(url, *args, **kwargs):
        global _found, _uses
        if not str(url).startswith("env://"):
            yield from rendezvous(url, *args, **kwargs)
            return
        key = url, args, *map(os.environ.get, ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
        if _kept is None or _kept[0] != key:
            _found = key, next(rendezvous(url, *args, **kwargs))
            yield _found[1]
        else:
            _uses += 1
            store, *place = _kept[1]
            yield dist.PrefixStore(f"dtrain_{_uses}", store), *place

    return found


def monitored_barrier(backend):
    """For dist.monitored_barrier, which looks at the backend's name first."""

    def wrapped(was):
        def monitored(group=None, timeout=None, wait_all_ranks=False):
            chosen = _c10d._get_default_group() if group is None else group
            if chosen is dist.GroupMember.NON_GROUP_MEMBER or dist.get_backend(chosen) != backend or \
                    not hasattr(chosen, "monitored_barrier"):
                return was(group, timeout, wait_all_ranks)
            return chosen.monitored_barrier(timeout or _c10d.default_pg_timeout, wait_all_ranks)

        return monitored

    return wrapped
