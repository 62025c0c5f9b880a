"""Guards: weights and the state of modules must be the same when a call runs as when it was recorded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from foldloom.errors import ArgumentError
from foldloom.execution.kernels import describe
from foldloom.execution.weight_grads import swapping

State = tuple[tuple[nn.Module, bool, dict[str, Any], dict[str, Any]], ...]
"""Of a module and all its submodules: the training mode, the parameters and the submodules. What the module computes depends on these,
beside the numbers in its parameters."""


def state_of(module: nn.Module) -> State:
    with swapping:  # another thread may have put something in the place of weights
        return tuple([(part, part.training, dict(part._parameters), dict(part._modules)) for part in module.modules()])


def holds(state: State) -> bool:
    """Whether this is the state of its module."""
    if _holds_now(state):
        return True
    with swapping:  # another thread may have been using the module
        return _holds_now(state)


def _holds_now(state: State) -> bool:
    """Asked at every call of a module. Comparing dictionaries compares identities first, which is
    fast; comparing two different weights raises RuntimeError."""
    try:
        for module, training, weights, submodules in state:
            if module.training is not training or module._parameters != weights or module._modules != submodules:
                return False
    except RuntimeError:
        return False
    return True


def is_plain(state: State) -> bool:
    """Whether a module is in this state and has no hooks, so that a call of it is one operation."""
    return holds(state) and not any(part._forward_hooks or part._forward_pre_hooks for part, *_ in state)


def _put(state: State) -> None:
    for module, training, weights, submodules in state:
        module.training = training
        module._parameters.update(weights)
        module._modules.update(submodules)


class Guards:
    """The versions of tensors and the states of modules that recorded calls depend on.

    A guarded tensor that has been changed in place is an error when the calls run. One of torch's modules is put back for the run
    into the state in which it was called, because `torch.func.functional_call` gives a module other weights for one call; a call in
    any other state is not recorded as a call of the module.
    """

    def __init__(self) -> None:
        self.runs_later = False
        """Whether the recording is kept. It runs with the weights and the modules of that time, which are not guarded."""
        self.module_states: dict[nn.Module, State] = {}
        """Torch's modules, each in the state in which it was first called."""
        self._cells: dict[nn.Module, State] = {}
        self._tensors: dict[int, tuple[torch.Tensor, int]] = {}

    def clear(self) -> None:
        """Nothing more will run."""
        self.module_states.clear()
        self._cells.clear()
        self._tensors.clear()

    def guard_tensors(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            if id(tensor) not in self._tensors and not tensor.is_inference():
                self._tensors[id(tensor)] = tensor, tensor._version

    def guard_module(self, module: nn.Module) -> bool:
        """Guard one of torch's modules. False if it cannot be: it is in another state than when it was first called, or its weights
        are not parameters that can be told from others."""
        weights = [weight for part in module.modules() for weight in part._parameters.values() if weight is not None]
        if not all(isinstance(weight, nn.Parameter) for weight in weights):
            return False
        if weights and all(weight.numel() == 1 for weight in weights):
            return False
        state = self.module_states.setdefault(module, state_of(module))
        return holds(state)

    def guard_cell(self, module: nn.Module) -> None:
        """Guard the module of a cell."""
        if self.runs_later:
            return
        self.guard_tensors((*module.parameters(), *module.buffers()))
        if module not in self._cells and module not in self.module_states:
            self._cells[module] = state_of(module)

    def check_mode(self, module: nn.Module, training: bool) -> None:
        """`train()` or `eval()` of a cell: an error if it has been called."""
        if module in self._cells and module.training is not training:
            raise _switched(module)

    def check_modules(self) -> None:
        """For a recording that is kept: torch's modules must be in the state in which they were called."""
        for module, state in self.module_states.items():
            if not holds(state):
                raise _switched(module)

    def check(self) -> None:
        """Raise if a guarded tensor or a cell's module has changed."""
        for tensor, version in self._tensors.values():
            if tensor._version != version:
                raise ArgumentError(
                    f"a tensor ({describe(tensor)}) that calls of this batch read was changed in place before all of them had run. "
                    "Make a new tensor instead (`w = w + 1`), or change it before or after the batch"
                )
        for module, state in self._cells.items():
            if not holds(state):
                raise _switched(module)

    def changes_allowed(self) -> AbstractContextManager[None]:
        """Within it kernels may change guarded tensors: running statistics, or an embedding with `max_norm`."""
        return self._with_versions_updated() if self._tensors else nullcontext()

    @contextmanager
    def _with_versions_updated(self) -> Iterator[None]:
        before = [(tensor, tensor._version) for tensor, _ in self._tensors.values()]
        try:
            yield
        finally:
            for tensor, version in before:
                self._tensors[id(tensor)] = tensor, self._tensors[id(tensor)][1] + tensor._version - version

    @contextmanager
    def as_recorded(self) -> Iterator[None]:
        """Check all guards, and put modules into the states in which they were called. Kernels run within it."""
        self.check()
        others = [(module, state) for module, state in self.module_states.items() if not holds(state)]
        with swapping if others else nullcontext():
            put_back = [state_of(module) for module, _ in others]
            try:
                for _, state in others:
                    _put(state)
                with self.changes_allowed():
                    yield
            finally:
                for state in put_back:
                    _put(state)


def _switched(module: nn.Module) -> ArgumentError:
    return ArgumentError(
        f"{type(module).__name__} was switched between train() and eval(), or given other weights, after it, or a cell of it, had been "
        "called. Do so before or after the batch; what needs both modes needs a batch for each"
    )
