"""What calls read when they run, and must find as it was when they were recorded: weights, and the state of modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from foldloom.errors import ArgumentError
from foldloom.execution.kernels import describe

State = tuple[tuple[nn.Module, bool, dict[str, Any], dict[str, Any]], ...]
"""What a module computes depends on it, beside the numbers in its weights: of it and all its parts the mode, weights and parts."""


def state_of(module: nn.Module) -> State:
    return tuple([(part, part.training, dict(part._parameters), dict(part._modules)) for part in module.modules()])


def holds(state: State) -> bool:
    """Whether this is the state of its module. Asked at every call of a module, so the dictionaries are compared as they are, which for
    objects that are the same takes no time. Weights that are others say that they cannot tell whether they are equal."""
    try:
        for module, training, weights, parts in state:
            if module.training is not training or module._parameters != weights or module._modules != parts:
                return False
    except RuntimeError:
        return False
    return True


def is_plain(state: State) -> bool:
    """Whether a module is in this state and none of its parts has got a hook, so that a call of it is one operation."""
    return holds(state) and not any(part._forward_hooks or part._forward_pre_hooks for part, *_ in state)


def _put(state: State) -> None:
    for module, training, weights, parts in state:
        module.training = training
        module._parameters.update(weights)
        module._modules.update(parts)


class Unchanged:
    """Tensors and modules that have been met, as they were then.

    A tensor that has changed since is refused: other calls, of this example or of others, have been recorded with what it was. A module
    of torch's own is put back for the run into the state that it was called in, because `functional_call` and its kin lend a
    module other weights for one call; a call in any other state is not recorded as one of the module.
    """

    def __init__(self) -> None:
        self.runs_later = False
        """A recording that is kept runs with what weights and modules will be then."""
        self.modules: dict[nn.Module, State] = {}
        self._cells: dict[nn.Module, State] = {}
        self._tensors: dict[int, tuple[torch.Tensor, int]] = {}

    def note_tensors(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            if id(tensor) not in self._tensors and not tensor.is_inference():
                self._tensors[id(tensor)] = tensor, tensor._version

    def takes_module(self, module: nn.Module) -> bool:
        """Whether it is in the state that it was first called in, its weights are its own, and can be told from others."""
        weights = [weight for part in module.modules() for weight in part._parameters.values() if weight is not None]
        if not all(isinstance(weight, nn.Parameter) for weight in weights):
            return False
        if weights and all(weight.numel() == 1 for weight in weights):
            return False
        state = self.modules.setdefault(module, state_of(module))
        return holds(state)

    def note_cell(self, module: nn.Module) -> None:
        """Of a cell of the user's, or of what it is a method of."""
        if self.runs_later:
            return
        self.note_tensors((*module.parameters(), *module.buffers()))
        if module not in self._cells and module not in self.modules:
            self._cells[module] = state_of(module)

    def check_mode(self, module: nn.Module, training: bool) -> None:
        """A cell is switched to another mode: too late, if it has been called."""
        if module in self._cells and module.training is not training:
            raise _switched(module)

    def check_modules(self) -> None:
        """For a recording that is kept: it runs with the modules as they are, and must have been made with them."""
        for module, state in self.modules.items():
            if not holds(state):
                raise _switched(module)

    def check(self) -> None:
        for tensor, version in self._tensors.values():
            if tensor._version != version:
                raise ArgumentError(
                    f"a tensor ({describe(tensor)}) that calls of this batch read was changed in place before all of them had run. "
                    "Make a new tensor instead (`w = w + 1`), or change it before or after the batch"
                )
        for module, state in self._cells.items():
            if not holds(state):
                raise _switched(module)

    def changes_are_ours(self) -> AbstractContextManager[None]:
        """Kernels may change what they are given: statistics, or an embedding that is kept below a norm."""
        return self._following_changes() if self._tensors else nullcontext()

    @contextmanager
    def _following_changes(self) -> Iterator[None]:
        before = [(tensor, tensor._version) for tensor, _ in self._tensors.values()]
        try:
            yield
        finally:
            for tensor, version in before:
                self._tensors[id(tensor)] = tensor, self._tensors[id(tensor)][1] + tensor._version - version

    @contextmanager
    def as_recorded(self) -> Iterator[None]:
        """Checks, and lets kernels run within."""
        self.check()
        others = [(module, state) for module, state in self.modules.items() if not holds(state)]
        put_back = [state_of(module) for module, _ in others]
        try:
            for _, state in others:
                _put(state)
            with self.changes_are_ours():
                yield
        finally:
            for state in put_back:
                _put(state)


def _switched(module: nn.Module) -> ArgumentError:
    return ArgumentError(
        f"{type(module).__name__} was switched between train() and eval(), or given other weights, after it, or a cell of it, had been "
        "called. Do so before or after the batch; what needs both modes needs a batch for each"
    )
