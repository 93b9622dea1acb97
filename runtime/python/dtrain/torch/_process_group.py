# SPDX-License-Identifier: Apache-2.0
"""The backend "dtrain" of torch.distributed, for DistributedDataParallel, FSDP and programs that call it themselves.

Groups use libdtrain. Gloo does what libdtrain does not have: messages between two ranks, bitwise operations, sums of
sparse tensors, and groups that only their members make.
"""

import inspect
import weakref

import torch
import torch.distributed as dist
from torch.autograd import _profiler_enabled
from torch.autograd.profiler import record_function

from dtrain import _arrays, _errors, _job, _moves
from dtrain._arrays import TorchTensors
from dtrain._calls import issue, pointer, shape_text
from dtrain._collectives import Reduction, start_allreduce
from dtrain._operations import Average, Max, Min, Product, Sum
from dtrain.compression import Compression

from . import _c10d, _group_sets
from ._work import All, Pending, Sent, Then, Waiter

NAME = "dtrain"
_AS_IT_IS = 1.0, 1.0  # factors
_OPERATIONS = [(dist.ReduceOp.SUM, Sum), (dist.ReduceOp.PRODUCT, Product), (dist.ReduceOp.MIN, Min),
               (dist.ReduceOp.MAX, Max), (dist.ReduceOp.AVG, Average)]  # type: ignore[attr-defined]


def _create(options, _=None):
    """On the ranks that are in the new group: their group."""
    ranks, rank, size = list(options.global_ranks_in_group), options.group_rank, options.group_size
    _job.init()
    number = None
    if not ranks:
        if (rank, size) != (_job.rank(), _job.size()):
            raise _errors.InvalidArgumentError(
                f"init_process_group: this process is rank {rank} of {size} there, and rank {_job.rank()} of {_job.size()} of "
                "the job: start each worker by dtrain launch, which sets RANK and WORLD_SIZE"
            )
    elif _all_ranks_make(ranks, options.group_id):
        number = _group_sets.meet("new_group", ranks, dist.get_rank())  # first, as it fails at once if a rank is lost
    try:
        gloo = dist.ProcessGroupGloo(dist.PrefixStore(NAME, options.store), rank, size, timeout=options.timeout)
    except BaseException:
        if number is not None:
            _group_sets.release(number, _job.number)
        raise
    if not ranks:
        number = _set_of_default_group()
    if number is None:
        return gloo
    _group_sets.set_timeout(number, options.timeout)
    group = _ProcessGroup(rank, size, _group_sets.taken(number), gloo)
    weakref.finalize(group, _group_sets.release, number, _job.number)
    return group


def _set_of_default_group():
    try:
        return _group_sets.meet("init_process_group", range(_job.size()), _job.rank())
    except _errors.MismatchError:
        raise
    except _errors.CollectiveError:
        # The job is broken, and all ranks make the default group again.
        _job.rejoin()
        return _group_sets.meet("init_process_group", range(_job.size()), _job.rank())


def _all_ranks_make(ranks, name):
    """Whether this group is one that all ranks of the job make. With use_local_synchronization (PyTorch 2), only its
    members do, and its name is no number."""
    return _hears_of_groups and dist.get_world_size() == _job.size() and (name is None or str(name).isdigit()) and \
        ranks == sorted(ranks)


def _meet_members(ranks, name):
    """On the ranks that are not in a new group."""
    _job.init()
    if _all_ranks_make(ranks, name):
        _group_sets.meet("new_group", ranks, dist.get_rank())


def _operation(opts, *tensors):
    """dtrain's name for the reduction of `opts`; None for one that it does not have, or has not for these tensors."""
    wanted = getattr(opts, "reduceOp", opts)
    types = {TorchTensors.type_name(tensor) for tensor in tensors}
    if not all(name in _arrays.NATIVE or name in _arrays.REDUCED_AS for name in types):
        return None
    # In PyTorch 2 the other way round is never true.
    return next((ours for theirs, ours in _OPERATIONS if wanted == theirs), None)


def _joined(parts, own):
    return torch.stack([part.detach().reshape(own.shape) for part in parts])


class _ProcessGroup(dist.ProcessGroup):
    """Takes the calls of torch.distributed: lists with one tensor, and options."""

    def __init__(self, rank, size, ours, gloo):
        super().__init__(rank, size)
        self._ours, self._gloo = ours, gloo
        self._members = ours.ranks
        self._rank, self._size = rank, size
        self._waiter, self._sender = Waiter(), Waiter()
        self._group_name = ""

    # PyTorch 2's, by which DeviceMesh and functional collectives find a group.

    def getGroupName(self):
        return self._group_name

    def setGroupName(self, name):
        self._group_name = name

    def getBackendName(self):
        return NAME

    def name(self):
        return NAME

    def _pending(self, name, handle, outputs):
        name = f"{NAME}:{name}"
        if _profiler_enabled():
            with record_function(name):
                pass
        return Pending(name, handle, outputs, self._waiter)

    def _several(self, works):
        return Pending(None, All(works), [tensor for work in works for tensor in work._outputs], self._waiter)

    def _start(self, what, arguments, arrays, finish, shape=None):
        """`arrays`: what must live until then, the first of them on the device where it happens."""
        stream = TorchTensors.stream(arrays[0])

        def finish_behind():
            TorchTensors.finish_on_stream(arrays[0], stream)
            finish()

        return issue(what, arguments, arrays, finish_behind, stream, process_set=self._ours, shape=shape)

    # ---- Reductions ----

    def allreduce(self, tensors, opts=dist.ReduceOp.SUM):
        (tensor,) = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        op = _operation(opts, tensor) if tensor.layout is torch.strided else None
        if op is None:
            return self._gloo.allreduce([tensor], opts)
        handle = start_allreduce(tensor, None, op, _AS_IT_IS, self._ours, Compression.none, in_place=True, wait=False)
        return self._pending("all_reduce", handle, [tensor])

    def allreduce_coalesced(self, tensors, opts):
        return self._several([self.allreduce([tensor], opts) for tensor in tensors])

    def reduce(self, tensors, opts):
        (tensor,) = tensors
        op = _operation(opts, tensor)
        if op is None:
            return self._gloo.reduce(tensors, opts)
        return self._reduce(tensor, tensor, op, opts.rootRank)

    def _reduce(self, tensor, target, op, root):
        reduction = Reduction(tensor.detach(), TorchTensors, op, _AS_IT_IS, self._size, True)

        def finish():
            if root == self._rank:
                TorchTensors.copy_into(target, reduction.result())

        arguments = (*reduction.operands(), tensor.numel(), reduction.type, int(reduction.op), root)
        handle = self._start("dtrain_reduce", arguments, (reduction.send, reduction), finish,
                             shape_text(TorchTensors, tensor, reduction.native))
        return self._pending("reduce", handle, [target])

    def reduce_scatter(self, outputs, inputs, opts):
        return self._several([self._reduce_scatter_list(output, parts, opts) for output, parts in zip(outputs, inputs)])

    def _reduce_scatter_list(self, output, parts, opts):
        if len(parts) == self._size and any(part.numel() != parts[0].numel() for part in parts):  # the same on all ranks
            mine, op = parts[self._rank], _operation(opts, *parts)
            if mine.numel() != output.numel() or op is None or any(part.dtype != output.dtype for part in parts):
                raise _errors.InvalidArgumentError(
                    f"reduce_scatter: output is {tuple(output.shape)}, {output.dtype}, on rank {self._rank}, whose part is "
                    f"{tuple(mine.shape)}, {mine.dtype}; this reduction is{'' if op else ' not'} supported")
            return self._several([self._reduce(part, output if rank == self._rank else part, op, rank)
                                  for rank, part in enumerate(parts)])
        self._check_parts("reduce_scatter", parts, output)
        return self._reduce_scatter_base(output, _joined(parts, output), opts)

    def _reduce_scatter_base(self, output, source, opts=dist.ReduceOp.SUM):
        op = _operation(opts, source)
        if op is None:
            raise _errors.UnsupportedError(f"reduce_scatter: no such reduction of {source.dtype}")
        if source.numel() != output.numel() * self._size or source.dtype != output.dtype:
            raise _errors.InvalidArgumentError(
                f"reduce_scatter of {tuple(source.shape)}, {source.dtype}, does not fill {tuple(output.shape)}, "
                f"{output.dtype}, on each of {self._size} ranks"
            )
        reduction = Reduction(source.detach(), TorchTensors, op, _AS_IT_IS, self._size, True, output.shape)
        if TorchTensors.is_like(output, reduction.recv) and output.is_contiguous():
            reduction.recv = output.detach()

        def finish():
            result = reduction.result()
            if result.data_ptr() != output.data_ptr():
                TorchTensors.copy_into(output, result)

        arguments = (*reduction.operands(), output.numel(), reduction.type, int(reduction.op))
        handle = self._start("dtrain_reduce_scatter", arguments, (reduction.send, reduction), finish,
                             shape_text(TorchTensors, output, reduction.native))
        return self._pending("reduce_scatter", handle, [output])

    def reduce_scatter_tensor_coalesced(self, outputs, inputs, opts=dist.ReduceOp.SUM):
        return self._several([self._reduce_scatter_base(*pair, opts) for pair in zip(outputs, inputs)])

    # ---- Moves ----

    def broadcast(self, tensors, opts):
        (tensor,) = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        return self._broadcast(tensor, getattr(opts, "rootRank", opts))

    def _broadcast(self, tensor, root):
        handle = _moves.start_broadcast(tensor, TorchTensors, self._members[root], None, self._ours, False, None)
        return self._pending("broadcast", handle, [tensor])

    def allgather(self, outputs, inputs, opts=None):
        return self._several([self._gather_all(parts, tensor) for parts, tensor in zip(outputs, inputs)])

    def _gather_all(self, parts, tensor):
        mine = parts[self._rank] if len(parts) == self._size else None
        if mine is None or mine.numel() != tensor.numel() or any(part.dtype != tensor.dtype for part in parts):
            raise _errors.InvalidArgumentError(
                f"all_gather: the outputs are not {self._size} tensors of {tensor.dtype}, one for each rank, with "
                f"{tuple(tensor.shape)} for rank {self._rank}"
            )
        if any(part.numel() != tensor.numel() for part in parts):  # the same on all ranks, as shapes need not be
            TorchTensors.copy_into(mine, tensor.view(mine.shape))
            return self._several([self._broadcast(part, rank) for rank, part in enumerate(parts)])
        output = torch.empty((self._size, *tensor.shape), dtype=tensor.dtype, device=tensor.device)

        def finish():
            for part, got in zip(parts, output):
                TorchTensors.copy_into(part, got.view(part.shape))

        return self._pending("all_gather", self._gather_into(output, tensor, finish), parts)

    def _allgather_base(self, output, tensor, opts=None):
        if output.numel() != tensor.numel() * self._size or output.dtype != tensor.dtype:
            raise _errors.InvalidArgumentError(
                f"all_gather_into_tensor: {tuple(output.shape)}, {output.dtype}, is not what {self._size} ranks have as "
                f"{tuple(tensor.shape)}, {tensor.dtype}"
            )
        return self._pending("all_gather", self._gather_into(output, tensor, lambda: None), [output])

    def allgather_into_tensor_coalesced(self, outputs, inputs, opts=None):
        return self._several([self._allgather_base(*pair) for pair in zip(outputs, inputs)])

    def allgather_coalesced(self, outputs, inputs, opts=None):
        # Each rank's list of all tensors.
        return self._several([self._gather_all([of_rank[i] for of_rank in outputs], tensor)
                              for i, tensor in enumerate(inputs)])

    def _gather_into(self, output, tensor, then):
        send, recv = TorchTensors.reachable(tensor), TorchTensors.reachable(output)

        def finish():
            if recv.data_ptr() != output.data_ptr():
                TorchTensors.copy_into(output, recv)
            then()

        data_type, width = _moves.sent_as(TorchTensors, send)
        count = send.numel() * send.element_size() // width
        arguments = pointer(TorchTensors, send), pointer(TorchTensors, recv), count, data_type
        return self._start("dtrain_allgather", arguments, (send, recv), finish,
                           shape_text(TorchTensors, tensor, data_type != _arrays.BYTE))

    def gather(self, outputs, inputs, opts):
        (tensor,) = inputs
        is_root = opts.rootRank == self._rank
        parts = outputs[0] if is_root else []
        if is_root:
            self._check_parts("gather", parts, tensor)
        received = torch.empty((len(parts), *tensor.shape), dtype=tensor.dtype, device=tensor.device)
        rows = [int(to == opts.rootRank) for to in range(self._size)]

        def finish(received):
            for part, got in zip(parts, received):
                TorchTensors.copy_into(part, got.view(part.shape))

        return self._exchange("gather", tensor, received, rows, tensor.numel(), finish, parts)

    def scatter(self, outputs, inputs, opts):
        (output,) = outputs
        is_root = opts.rootRank == self._rank
        parts = inputs[0] if is_root else []
        if is_root:
            self._check_parts("scatter", parts, output)
        sent = _joined(parts, output) if parts else output.new_empty(0)

        def finish(received):
            TorchTensors.copy_into(output, received)

        return self._exchange("scatter", sent, output, [int(is_root)] * self._size, output.numel(), finish, [output])

    def _check_parts(self, what, parts, own):
        wrong = [f"{tuple(part.shape)}, {part.dtype}, for rank {rank}" for rank, part in enumerate(parts)
                 if part.numel() != own.numel() or part.dtype != own.dtype]
        if wrong or len(parts) != self._size:
            raise _errors.InvalidArgumentError(
                f"{what}: rank {self._rank} must give a tensor of {tuple(own.shape)}, {own.dtype}, for each of {self._size} "
                f"ranks; it gives {'; '.join(wrong) or f'{len(parts)} tensors'}")

    def _exchange(self, what, sent, received, rows, each, finish, outputs):
        """`rows`: 1 for each rank that gets `each` elements of `sent`, else 0."""
        send, recv = TorchTensors.reachable(sent), TorchTensors.reachable(received)
        data_type, width = _moves.sent_as(TorchTensors, send)
        stream = TorchTensors.stream(send)

        def landed(_):
            TorchTensors.finish_on_stream(recv, stream)
            finish(recv)

        handle = _moves.issue_rows(
            "dtrain_alltoallv", pointer(TorchTensors, send), rows, each * send.element_size() // width, data_type,
            lambda _: pointer(TorchTensors, recv), (send, recv), landed, stream=stream, process_set=self._ours,
            shape=f"{what} of {TorchTensors.type_name(send)}")
        return self._pending(what, handle, outputs)

    def alltoall_base(self, output, source, output_splits, input_splits, opts=None):
        # Some ranks may give no splits where others do: they tell each other.
        def by_rank(splits, tensor):
            if not splits and tensor.shape[0] % self._size:
                raise _errors.InvalidArgumentError(
                    f"all_to_all_single: {tensor.shape[0]} rows cannot be split evenly among {self._size} ranks; give splits")
            return list(splits) or [tensor.shape[0] // self._size] * self._size

        rows = by_rank(output_splits, output)
        if len(rows) != self._size or min(rows) < 0 or sum(rows) != output.shape[0]:
            raise _errors.InvalidArgumentError(
                f"all_to_all_single: output_split_sizes {rows} of {self._size} ranks are not the {output.shape[0]} rows of "
                "output")
        handle = _moves.alltoall_async(source, by_rank(input_splits, source), process_set=self._ours)

        def finish(result):
            self._check_received("all_to_all_single", "rows", result[1].tolist(), rows)
            TorchTensors.copy_into(output, result[0].view_as(output))

        return self._pending("all_to_all", Then(handle, finish), [output])

    def alltoall(self, outputs, inputs, opts=None):
        if len(outputs) != self._size or len(inputs) != self._size:
            raise _errors.InvalidArgumentError(
                f"all_to_all: {len(inputs)} inputs and {len(outputs)} outputs for {self._size} ranks; there must be one for each")
        source = torch.cat([each.detach().reshape(-1) for each in inputs])
        handle = _moves.alltoall_async(source, [each.numel() for each in inputs], process_set=self._ours)

        def finish(result):
            come = result[1].tolist()
            self._check_received("all_to_all", "elements", come, [each.numel() for each in outputs])
            for output, got in zip(outputs, result[0].split(come)):
                TorchTensors.copy_into(output, got.view_as(output))

        return self._pending("all_to_all", Then(handle, finish), outputs)

    def _check_received(self, what, units, come, expected):
        wrong = [f"{got} {units} from rank {self._members[rank]}, not {due}"
                 for rank, (got, due) in enumerate(zip(come, expected)) if got != due]
        if wrong:
            raise _errors.MismatchError(f"{what}: rank {_job.rank()} got {'; '.join(wrong)}")

    # ---- Meeting ----

    def barrier(self, opts=None):
        return self._pending("barrier", issue("dtrain_barrier", (), None, lambda: None, process_set=self._ours), [])

    # ---- What Gloo does ----

    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        return self._gloo.monitored_barrier(timeout, wait_all_ranks)

    def send(self, tensors, to, tag):
        self._check_peer("send to", to)
        return Sent(self._gloo.send(tensors, to, tag), self._sender)

    def recv(self, tensors, of, tag):
        self._check_peer("receive from", of)
        return self._gloo.recv(tensors, of, tag)

    def _check_peer(self, what, peer):
        if peer == self._rank:  # with which Gloo crashes
            raise _errors.InvalidArgumentError(f"rank {self._members[peer]} cannot {what} itself")

    def recv_anysource(self, tensors, tag):
        return self._gloo.recv_anysource(tensors, tag)

    # PyTorch's later names.
    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base


_devices = "devices" in inspect.signature(dist.Backend.register_backend).parameters  # PyTorch 2
dist.Backend.register_backend(NAME, _create, extended_api=True, **({"devices": ["cpu", "cuda"]} if _devices else {}))
_hears_of_groups = _c10d.replace("_new_process_group_helper", _c10d.with_other_ranks(NAME, _meet_members))
_c10d.replace("rendezvous", _c10d.at_kept_store)
_c10d.replace("monitored_barrier", _c10d.monitored_barrier(NAME))
