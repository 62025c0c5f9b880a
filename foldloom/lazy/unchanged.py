"""What calls read when they run, and must find as it was when they were recorded: weights, and the state of modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn

from foldloom.errors import ArgumentError
from foldloom.execution.kernels import describe


class State(NamedTuple):
    """What a module computes depends on it, beside the numbers in its weights."""

    training: bool
    weights: tuple[Any, ...]
    parts: tuple[State, ...]


def state_of(module: nn.Module) -> State:
    parts = tuple([state_of(part) for part in module._modules.values() if part is not None])
    return State(module.training, tuple(module._parameters.values()), parts)


def is_in(state: State, module: nn.Module) -> bool:
    """Whether the module is in this state. Asked at every call of a module."""
    training, weights, parts = state
    own, modules = module._parameters, module._modules
    if module.training is not training or len(own) != len(weights):
        return False
    for weight, noted in zip(own.values(), weights, strict=True):
        if weight is not noted:
            return False
    if not modules and not parts:
        return True
    present = [part for part in modules.values() if part is not None]
    return len(present) == len(parts) and all(map(is_in, parts, present))


def _put(state: State, module: nn.Module) -> None:
    module.training = state.training
    module._parameters.update(zip(module._parameters, state.weights, strict=True))
    present = [part for part in module._modules.values() if part is not None]
    for part, its_state in zip(present, state.parts, strict=True):
        _put(its_state, part)


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
        """Whether it is in the state that it was first called in, and its weights are its own."""
        if not all(
            isinstance(own, nn.Parameter) for part in module.modules() for own in part.parameters(recurse=False)
        ):
            return False
        state = self.modules.setdefault(module, state_of(module))
        return is_in(state, module)

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

    def check(self) -> None:
        for tensor, version in self._tensors.values():
            if tensor._version != version:
                raise ArgumentError(
                    f"a tensor ({describe(tensor)}) that calls of this batch read was changed in place before all of them had run. "
                    "Make a new tensor instead (`w = w + 1`), or change it before or after the batch"
                )
        for module, state in self._cells.items():
            if not is_in(state, module):
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
        with ExitStack() as stack:
            for module, state in self.modules.items():
                if not is_in(state, module):
                    stack.callback(_put, state_of(module), module)
                    _put(state, module)
            stack.enter_context(self.changes_are_ours())
            yield


def _switched(module: nn.Module) -> ArgumentError:
    return ArgumentError(
        f"{type(module).__name__} was switched between train() and eval(), or given other weights, after a cell of it had been called "
        "in this batch. Do so before or after the batch; what needs both modes needs a batch for each"
    )
