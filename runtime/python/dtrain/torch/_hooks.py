# SPDX-License-Identifier: Apache-2.0
"""What autograd calls: when it has made a gradient, and at the end of backward()."""

import sys

import torch
from torch.autograd.function import BackwardCFunction

_NESTED = BackwardCFunction.apply.__code__


def watch(parameter, made, adds=None):
    """Calls made() when backward() has added to the parameter's gradient, adds() before that. Returns what
    to give to unwatch(); the hooks may end when that is gone."""
    frozen = not parameter.requires_grad
    if frozen:
        # Maybe not for ever.
        parameter.requires_grad_(True)
    hooks = [parameter.register_hook(lambda _: adds())] if adds is not None else []
    if hasattr(parameter, "register_post_accumulate_grad_hook"):
        hooks.append(parameter.register_post_accumulate_grad_hook(lambda _: made()))
    else:
        # Before PyTorch 2.1: the node that adds to .grad, which lives as long as we hold it.
        with torch.enable_grad():
            node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
        hooks += [node.register_hook(lambda *_: made()), node]
    if frozen:
        parameter.requires_grad_(False)
    return hooks


def unwatch(hooks):
    for hook in hooks:
        if hasattr(hook, "remove"):
            hook.remove()
    hooks.clear()


def at_end_of_backward(call):
    """Calls `call` when the outermost backward() that runs now is over. An autograd function may call
    backward() itself, as reentrant checkpoints do. backward() raises what `call` raises."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not _NESTED:
        frame = frame.f_back
    if frame is None:
        torch.autograd.Variable._execution_engine.queue_callback(call)
        return
    hooks = []

    def outside(*_):
        if hooks:
            unwatch(hooks)
            at_end_of_backward(call)

    # What comes after that function.
    for node, _ in frame.f_locals["self"].next_functions:
        if node is not None:
            hooks.append(node.register_hook(outside))
