"""Guards: weights and the state of modules must be the same when a call runs as when it was recorded."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import CellType
from typing import Any

import torch
from torch import nn

from foldloom.errors import ArgumentError
from foldloom.execution.backward.weight_grads import swapping
from foldloom.execution.kernels import describe
from foldloom.tracing.scope import unwatched, user_line

State = tuple[tuple[nn.Module, bool, dict[str, Any], dict[str, Any], dict[str, Any]], ...]
"""Of a module and all its submodules: the training mode, the parameters, the submodules and the settings. What the module computes depends
on these, beside the numbers in its parameters."""

_PLAIN = frozenset((int, float, bool, str, complex, type(None), tuple, torch.dtype, torch.device, torch.Size))


def settings_of(attributes: dict[str, Any]) -> dict[str, Any]:
    """Those of some variables that are plain: the slope of a LeakyReLU, say."""
    return {name: value for name, value in attributes.items() if type(value) in _PLAIN}


def state_of(module: nn.Module) -> State:
    with swapping:  # another thread may have put something in the place of weights
        return tuple(
            [
                (part, part.training, dict(part._parameters), dict(part._modules), settings_of(vars(part)))
                for part in module.modules()
            ]
        )


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
        for module, training, weights, submodules, settings in state:
            if module.training is not training or module._parameters != weights or module._modules != submodules:
                return False
            if not same_settings(vars(module), settings):
                return False
    except RuntimeError:
        return False
    return True


def same_settings(attributes: dict[str, Any], settings: dict[str, Any]) -> bool:
    """Whether variables have these values, and of the same types."""
    for name, value in settings.items():
        now = attributes.get(name, _PLAIN)
        if now is not value and (type(now) is not type(value) or repr(now) != repr(value)):
            return False
    return True


def is_plain(state: State) -> bool:
    """Whether a module is in this state and has no hooks, so that a call of it is one operation."""
    return holds(state) and not any(part._forward_hooks or part._forward_pre_hooks for part, *_ in state)


def _put(state: State) -> None:
    for module, _, weights, submodules, settings in state:
        module._parameters.update(weights)
        module._modules.update(submodules)
        vars(module).update(settings)  # the training mode is one of them


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
        self._twins: dict[tuple[Any, ...], nn.Module] = {}
        """The first module that was called, by its type and weights."""
        self._cells: dict[nn.Module, State] = {}
        self._functions: dict[int, tuple[Any, str, dict[str, Any]]] = {}
        self._tensors: dict[int, tuple[torch.Tensor, int]] = {}
        self._address: dict[int, int] = {}
        """Of guarded tensors: where their numbers are. `w.data = ...` changes it, and `w.data.mul_(2)` no version."""
        self._changed: str | None = None
        """What was changed, and where, if a guarded tensor was."""
        self._flags: dict[int, tuple[torch.Tensor, bool]] = {}
        """Tensors whose `requires_grad` was switched inside the batch, and what it was before."""
        self.frozen: frozenset[int] = frozenset()
        """Those that do not require grad now, and did at first."""

    def clear(self) -> None:
        """Nothing more will run."""
        self.module_states.clear()
        self._twins.clear()
        self._cells.clear()
        self._functions.clear()
        self._tensors.clear()
        self._address.clear()
        self._flags.clear()

    def guard_tensors(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            if id(tensor) not in self._tensors and not tensor.is_inference():
                self._tensors[id(tensor)] = tensor, tensor._version
                with unwatched():
                    self._address[id(tensor)] = _address_of(tensor)

    def note_change(self, target: object) -> None:
        """A tensor, or each of a list, is about to be changed in place. If it shares memory with a guarded one, calls that run later are
        refused; an error here might be caught (`load_state_dict` does)."""
        tensors = target if isinstance(target, (list, tuple)) else (target,)
        memory = {memory_of(tensor) for tensor in tensors if isinstance(tensor, torch.Tensor)} - {None}
        if memory and self._changed is None:
            for tensor, _ in self._tensors.values():
                if memory_of(tensor) in memory:
                    self._changed = f"{describe(tensor)}, at {user_line()}"
                    return

    def guards_any(self, memory: Set[int | None]) -> bool:
        """Whether a tensor in such memory is guarded."""
        return any(memory_of(tensor) in memory for tensor, _ in self._tensors.values())

    def refresh(self, memory: Set[int | None]) -> bool:
        """Tensors in such memory have been changed when nothing was left to run that reads them. Whether any of them was guarded."""
        found = [tensor for tensor, _ in self._tensors.values() if memory_of(tensor) in memory]
        with unwatched():
            for tensor in found:
                self._tensors[id(tensor)] = tensor, tensor._version
                self._address[id(tensor)] = _address_of(tensor)
        return bool(found)

    def note_flag(self, tensor: torch.Tensor) -> None:
        """Whether it requires grad is about to be switched."""
        self._flags.setdefault(id(tensor), (tensor, tensor.requires_grad))

    def first_flag(self, tensor: torch.Tensor) -> bool:
        return self._flags[id(tensor)][1]

    def flag_changed(self, tensor: torch.Tensor) -> bool:
        """It was switched. False if calls that were recorded before know nothing of the flag that it has now, and have run."""
        is_new = tensor.requires_grad and not self.first_flag(tensor)
        if is_new:
            self._flags[id(tensor)] = tensor, True
        self.frozen = frozenset([key for key, (t, first) in self._flags.items() if first and not t.requires_grad])
        return not is_new

    @contextmanager
    def _first_flags(self) -> Iterator[None]:
        """Weights require grad as they did when they were first used."""
        others = [tensor for tensor, first in self._flags.values() if tensor.requires_grad is not first]
        with unwatched():
            for tensor in others:
                tensor.requires_grad_(not tensor.requires_grad)
        try:
            yield
        finally:
            with unwatched():
                for tensor in others:
                    tensor.requires_grad_(not tensor.requires_grad)

    def guard_module(self, module: nn.Module) -> bool:
        """Guard one of torch's modules. False if it cannot be: it is in another state than when it was first called, or its weights
        are not parameters that can be told from others."""
        weights = [weight for part in module.modules() for weight in part._parameters.values() if weight is not None]
        if not all(isinstance(weight, nn.Parameter) for weight in weights):
            return False
        if weights and all(weight.numel() == 1 for weight in weights):
            return False
        if self.frozen and any(id(weight) in self.frozen for weight in weights):
            return False
        state = self.module_states.setdefault(module, state_of(module))
        return holds(state)

    def twin_of(self, module: nn.Module) -> nn.Module:
        """A module that was called before, of the same weights and settings, of which this one is a copy; else the module itself."""
        weights = [id(weight) for part in module.modules() for weight in part._parameters.values()]
        twin = self._twins.setdefault((type(module), *weights), module) if weights else module
        if twin is module:
            return module
        mine, others = list(module.modules()), list(twin.modules())
        are_alike = len(mine) == len(others) and all(
            type(one) is type(other) and settings_of(vars(one)) == settings_of(vars(other))
            for one, other in zip(mine, others, strict=True)
        )
        return twin if are_alike else module

    def guard_cell(self, module: nn.Module) -> None:
        """Guard the module of a cell."""
        if self.runs_later:
            return
        self.guard_tensors((*module.parameters(), *module.buffers()))
        if module not in self._cells and module not in self.module_states:
            self._cells[module] = state_of(module)

    def guard_function(self, function: Any, label: str) -> None:
        """Guard the variables around the function of a cell."""
        if not self.runs_later and id(function) not in self._functions:
            settings = settings_of(variables_of(function))
            if settings:
                self._functions[id(function)] = function, label, settings

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
        with unwatched():
            for number, (tensor, version) in self._tensors.items():
                if tensor._version != version or _address_of(tensor) != self._address[number]:
                    self._changed = self._changed or describe(tensor)
        if self._changed is not None:
            raise ArgumentError(
                f"a tensor ({self._changed}) that calls of this batch read was changed in place before all of them had run. "
                "Make a new tensor instead (`w = w + 1`), or change it before or after the batch"
            )
        for module, state in self._cells.items():
            if not holds(state):
                raise _switched(module)
        for function, label, settings in self._functions.values():
            if not same_settings(variables_of(function), settings):
                raise _changed_around(label, variables_of(function), settings)

    def changes_allowed(self) -> AbstractContextManager[None]:
        """Within it kernels may change what is guarded: running statistics, an embedding with `max_norm`, a counter."""
        return self._with_changes_noted() if self._tensors or self._cells or self._functions else nullcontext()

    @contextmanager
    def _with_changes_noted(self) -> Iterator[None]:
        tensors = [tensor for tensor, _ in self._tensors.values()]
        with unwatched():
            versions = [tensor._version for tensor in tensors]
        parts = [(vars(part), settings) for state in self._cells.values() for part, *_, settings in state]
        parts += [(variables_of(function), settings) for function, _, settings in self._functions.values()]
        was = [[*map(attributes.get, settings)] for attributes, settings in parts]
        try:
            yield
        finally:
            around = [variables_of(function) for function, *_ in self._functions.values()]
            attributes_now = [attributes for attributes, _ in parts[: len(parts) - len(around)]] + around
            for (_, settings), earlier, now in zip(parts, was, attributes_now, strict=True):
                if not all(map(operator.is_, map(now.get, settings), earlier)):
                    _note_changes(settings, dict(zip(settings, earlier, strict=True)), now)
            for tensor, version in zip(tensors, versions, strict=True):
                if tensor._version != version:
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
                with self.changes_allowed(), self._first_flags():
                    yield
            finally:
                for state in put_back:
                    _put(state)


def variables_of(function: Any) -> dict[str, Any]:
    """What a function finds around it, by name: in the functions that it stands in, and among the globals that it names."""
    code = getattr(function, "__code__", None)
    if code is None:
        return {}
    found = {name: function.__globals__[name] for name in code.co_names if name in function.__globals__}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        if cell != CellType():
            found[name] = cell.cell_contents
    return found


def _note_changes(settings: dict[str, Any], before: dict[str, Any], now: dict[str, Any]) -> None:
    """Take what has changed since ``before`` into guarded settings."""
    for name in list(settings):
        if now.get(name) is not before.get(name):
            settings.pop(name)
            settings.update(settings_of({name: now.get(name)}))


def _changed_around(label: str, now: dict[str, Any], before: dict[str, Any]) -> ArgumentError:
    name = next(name for name in before if not same_settings(now, {name: before[name]}))
    return ArgumentError(
        f"cell {label} reads `{name}`, which was {before[name]!r:.60} when the cell was called and is {now.get(name)!r:.60} now, before "
        f"all its calls have run. Pass it to the cell by keyword: `{label}(..., {name}={name})`"
    )


def _address_of(tensor: torch.Tensor) -> int:
    """Called where function modes do not watch."""
    return tensor.data_ptr() if tensor.layout is torch.strided else 0


def memory_of(tensor: torch.Tensor) -> int | None:
    with unwatched():
        is_plain = tensor.layout is torch.strided
        return tensor.untyped_storage()._cdata if is_plain else None


def _switched(module: nn.Module) -> ArgumentError:
    return ArgumentError(
        f"{type(module).__name__} was switched between train() and eval(), or given other weights or settings, after it, or a cell of it, "
        "had been called. Do so before or after the batch; what needs both modes needs a batch for each"
    )
