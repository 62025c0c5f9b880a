"""Looking at what a function does, without a trace: it is called, and everything that it changed is put back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from foldloom.tracing.mutation.guards import variables_of
from foldloom.tracing.scope import recording_paused, scope
from foldloom.tracing.weights import module_of

_TABLES = ("_parameters", "_buffers", "_modules")


@contextmanager
def looking_at(function: Any, *, runs: bool = True) -> Iterator[None]:
    """Random numbers drawn within are drawn again after it, from torch's generators, Python's and numpy's. Tensors of the user's that
    are changed in place, and buffers, attributes and gradients of the modules that the function is, or finds around it, are as before. If nothing ``runs``, no gradient can change."""
    whole = module_of(function)
    around = [found for found in variables_of(function).values() if isinstance(found, torch.nn.Module)]
    found = {id(part): part for module in ([whole] if whole is not None else []) + around for part in module.modules()}
    parts = [_Part(part, runs) for part in found.values()]
    state, of_python, of_numpy = torch.get_rng_state(), random.getstate(), np.random.get_state()
    on_devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    outer, scope.undo = scope.undo, {}
    try:
        yield
    finally:
        changed, scope.undo = scope.undo, outer
        torch.set_rng_state(state)
        random.setstate(of_python)
        np.random.set_state(of_numpy)
        if on_devices:
            torch.cuda.set_rng_state_all(on_devices)
        with recording_paused(), torch.no_grad():
            for tensor, memory, numbers in reversed(
                changed.values()
            ):  # of views of one tensor, the first was noted first
                memory.copy_(numbers)
                if tensor.data_ptr() != memory.data_ptr():
                    tensor.data = memory
            for part in parts:
                part.restore()


class _Part:
    """A module as it was: its attributes, and the numbers in its buffers."""

    def __init__(self, module: torch.nn.Module, runs: bool) -> None:
        self._module, self._kind = module, type(module)
        self._attributes = dict(vars(module))
        self._tables = {name: dict(vars(module)[name]) for name in _TABLES}
        buffers = [buffer for buffer in module._buffers.values() if buffer is not None]
        self._buffers = [(buffer, buffer.clone()) for buffer in buffers if not buffer.is_inference()]
        weights = [weight for weight in module._parameters.values() if weight is not None] if runs else []
        self._grads = [(weight, weight.grad) for weight in weights]
        """With what their gradients were, and the versions of these."""
        self._numbers = [(grad, grad._version, grad.clone()) for _, grad in self._grads if grad is not None]

    def restore(self) -> None:
        for weight, grad in self._grads:
            if weight.grad is not grad:
                weight.grad = grad
        for grad, version, numbers in self._numbers:
            if grad._version != version:
                grad.copy_(numbers)
        for buffer, value in self._buffers:
            # Writing what is there already would count as a change to autograd; and batch norm changes no version.
            if not torch.equal(buffer, value):
                buffer.copy_(value)
        if type(self._module) is not self._kind:
            return  # a lazy module that knows its sizes by now
        attributes = vars(self._module)
        _put(attributes, self._attributes)
        for name, table in self._tables.items():
            _put(attributes[name], table)


def _put(now: dict[str, Any], before: dict[str, Any]) -> None:
    if len(now) != len(before) or any(now.get(name) is not value for name, value in before.items()):
        now.clear()
        now.update(before)
