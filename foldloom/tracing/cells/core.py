"""Cells: the unit of batching."""

from __future__ import annotations

import itertools
import uuid
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from types import CellType
from typing import Any, cast

import torch
from torch.nn.utils.parametrize import is_parametrized

from foldloom.errors import ArgumentError, CellError, CellMismatchError, CellOutputError, NestedCellError
from foldloom.execution import Kernel
from foldloom.execution.kernels import describe, type_of
from foldloom.graph import Op, Type
from foldloom.pytrees import Nesting, flatten, unflatten
from foldloom.torch_private import inject_class, inject_property, is_any_autocast_enabled
from foldloom.tracing.cells.probing import PROBE_SIZE, check_leading, probe, refuse_mixing
from foldloom.tracing.functions.histories import rules_of
from foldloom.tracing.rules.modules import (
    MODULES,
    batched_module,
    call_on_rows,
    can_be_batched,
    flat_results,
    is_hooked,
    returned_by_module,
    takes_rows,
)
from foldloom.tracing.scope import autocast_state, scope
from foldloom.tracing.values.lazy_tensor import LazyTensor, is_tensor
from foldloom.tracing.weights import module_of

Settings = tuple[tuple[str, Any, str], ...]
"""Keyword arguments of a call, sorted by name, each with what tells it from values that merely equal it (1, 1.0, True)."""

_cell_of_key: weakref.WeakValueDictionary[str, Cell] = weakref.WeakValueDictionary()


@dataclass(frozen=True)
class Signature:
    """A cell called with arguments of given types and nesting: its op, and the nesting of what it returns."""

    op: Op
    returns: Nesting
    histories: tuple[int, ...]


_SHARED = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")


class Cell(torch.nn.Module):
    """A function or module over tensors with the batch first, called with the arguments of one example.

    A cell around a module shares that module's parameters, buffers, children and hooks under their own names, so that
    wrapping changes no state dict and a hook on the cell is a hook on the module. Made by `cell`.

    >>> import torch, foldloom as fl
    >>> linear = fl.cell(torch.nn.Linear(2, 3))
    >>> sorted(linear.state_dict())
    ['bias', 'weight']
    >>> linear(torch.ones(2)).shape  # one example: inside `fl.batch` it is recorded, outside it runs
    torch.Size([3])
    """

    def __init__(self, function: Callable[..., Any], *, compile: bool = False, label: str | None = None) -> None:
        """``label`` is what messages call the cell; by default the name of the function."""
        super().__init__()
        self.__dict__["function"] = function
        self.is_compiled = compile
        if isinstance(function, torch.nn.Module):
            for name, value in function.__dict__.items():
                if name in _SHARED or name.endswith("_hooks"):
                    self.__dict__[name] = value
            self.training = function.training
        named: Any = getattr(function, "__name__", type(function).__name__)
        self.label: str = named if label is None else label
        self._signatures: dict[Any, Signature] = {}
        self._modes_tried: set[tuple[bool, ...]] = set()
        self._compiled: dict[Any, tuple[Any, Callable[..., Sequence[torch.Tensor]]]] = {}
        """By signature and mode, with the parts and weights it was compiled for."""
        self._take_key(self._new_key())

    def _new_key(self) -> str:
        # Unique across processes: a cell that was unpickled here must not meet a namesake.
        return f"{self.label}#{uuid.uuid4().hex}"

    def _take_key(self, key: str) -> None:
        self.key = key
        _cell_of_key[key] = self

    def __call__(self, *args: Any, **settings: Any) -> Any:
        recorder = scope.recorder
        if recorder is not None:
            return recorder.call(self, args, settings)
        if scope.running:
            return self.call_batched(*args, **settings)
        return self._call_alone(args, settings)

    def forward(self, *args: Any, **settings: Any) -> Any:
        return self(*args, **settings)

    def call_batched(self, *args: Any, **settings: Any) -> Any:
        """Call the function itself, on arguments that have the batch first."""
        if self in scope.running:
            raise NestedCellError(
                f"cell {self.label} calls itself. A cell is one step of the computation and cannot recurse: let the function "
                "given to fl.batch recurse, and call the cell from there"
            )
        if type(self) is not Cell:
            self._pass_on_parametrizations()
        recorder, running = scope.recorder, scope.running
        scope.recorder, scope.running = None, (*running, self)
        try:
            if takes_rows(self.function, args):
                return call_on_rows(self.function, args)
            return self.function(*args, **settings)
        finally:
            scope.recorder, scope.running = recorder, running

    def _pass_on_parametrizations(self) -> None:
        """What `torch.nn.utils.parametrize` did to the cell (`weight_norm`, say), it means the cell's module."""
        module = self.function
        if not isinstance(module, torch.nn.Module) or not is_parametrized(self):
            return
        missing = [name for name in cast(torch.nn.ModuleDict, self.parametrizations) if not hasattr(type(module), name)]
        if missing:
            inject_class(module)
        for name in missing:
            inject_property(module, name)

    def _call_alone(self, args: Sequence[Any], settings: dict[str, Any]) -> Any:
        leaves: list[Any] = []
        nesting = flatten(tuple(args), leaves)
        device = self.device
        batched = [to_tensor(leaf, self, device).unsqueeze(0) for leaf in leaves]
        if not batched:
            raise _no_arguments(self)
        outputs: list[Any] = []
        returns = flatten(self.call_batched(*unflatten(nesting, iter(batched)), **settings), outputs)
        check_leading(self.label, outputs, 1, [describe(leaf) for leaf in batched])
        return unflatten(returns, iter([output.squeeze(0) for output in outputs]))

    @property
    def module(self) -> torch.nn.Module | None:
        """Where the cell's weights live."""
        return module_of(self.function)

    @property
    def device(self) -> torch.device | None:
        """Where the cell's weights are; None if it has none."""
        module = self.module
        if module is None:
            return None
        tensor = next(itertools.chain(module.parameters(), module.buffers()), None)
        return None if tensor is None else tensor.device

    def signature(self, types: tuple[Type, ...], nesting: Nesting, settings: Settings) -> Signature:
        """What a call with such arguments computes; found by trying, once."""
        key = self._key_of(types, nesting, settings)
        known = self._signatures.get(key)
        if known is None:
            known = self._signatures[key] = self._infer(types, nesting, settings)
        return known

    def knows(self, types: tuple[Type, ...], nesting: Nesting, settings: Settings) -> bool:
        """Whether `signature` is found without trying."""
        return self._key_of(types, nesting, settings) in self._signatures

    def _key_of(self, types: tuple[Type, ...], nesting: Nesting, settings: Settings) -> Hashable:
        requires_grad = tuple([weight.requires_grad for weight in _weights_of(self.function)])
        return (types, nesting, settings, self.training, torch.is_grad_enabled(), requires_grad, *autocast_state())

    def takes(self, types: Sequence[Type]) -> bool:
        """Whether one of torch's own modules can be called on blocks of such values as one operation."""
        is_ragged = any(type.ragged for type in types)
        return isinstance(self.function, torch.nn.Module) and can_be_batched(self.function, tuple(types), is_ragged)

    def _infer(self, types: tuple[Type, ...], nesting: Nesting, settings: Settings) -> Signature:
        if not types:
            raise _no_arguments(self)
        if any(type.ragged for type in types):
            returned = returned_by_module(self._ragged_form(types), types)
            return Signature(
                Op(self.key, types, returned.types, (nesting, settings), label=self.label),
                returned.nesting,
                returned.histories,
            )
        keywords = {name: value for name, value, _ in settings}
        returned, draws, leaves = probe(self, types, nesting, keywords)
        outputs: list[Any] = []
        returns = flatten(returned, outputs)
        check_leading(self.label, outputs, PROBE_SIZE, types)
        self._try_members(types, nesting, keywords)
        output_types = tuple([type_of(output[0]) for output in outputs])
        op = Op(self.key, types, output_types, (nesting, settings), repeatable=not draws, label=self.label)
        return Signature(op, returns, rules_of(outputs, leaves))

    def _try_members(self, types: tuple[Type, ...], nesting: Nesting, settings: dict[str, Any]) -> None:
        """Refuse a cell that mixes its members. Tried with its first signature, once in each training mode: user code has side effects."""
        mode = () if self.module is None else tuple([part.training for part in self.module.modules()])
        if mode not in self._modes_tried:
            self._modes_tried.add(mode)
            refuse_mixing(self, types, nesting, settings)

    def kernel(self, op: Op) -> Kernel:
        """The batched function of one of this cell's ops, made in this process or in another."""
        nesting, settings = cast(tuple[Nesting, Settings], op.settings)
        try:
            signature = self.signature(op.inputs, nesting, settings)
        except CellError as error:
            raise CellMismatchError(
                f"the plan was made for another {op.label}: it expects {op}, but {error}"
            ) from error
        if signature.op.outputs != op.outputs:
            raise CellMismatchError(
                f"the plan was made for another {op.label}: it expects {op}, but this one is {signature.op}"
            )
        if any(type.ragged for type in op.inputs):
            run = self._ragged_form(op.inputs)
            return self._kernel(op, lambda *operands: flat_results(run(*operands)))
        keywords = {name: value for name, value, _ in settings}
        flat = signature.returns == (tuple, len(op.outputs), (None,) * len(op.outputs))

        def call(*operands: torch.Tensor) -> Sequence[torch.Tensor]:
            arguments = operands if nesting is None else unflatten(nesting, iter(operands))
            returned = self.call_batched(*arguments, **keywords)
            if type(returned) is torch.Tensor:
                return (returned,)
            if flat:
                return returned  # type: ignore[no-any-return]
            outputs: list[Any] = []
            if flatten(returned, outputs) != signature.returns:
                raise CellOutputError(
                    f"cell {self.label} returned its results in another nesting than when its types were inferred; it must "
                    "return the same structure, with the same keys in the same order, for every batch"
                )
            return outputs

        return self._kernel(op, self._with_compiled(call, op) if self.is_compiled else call)

    def _kernel(self, op: Op, call: Callable[..., Sequence[Any]]) -> Kernel:
        is_cell = type(self.function) not in MODULES
        parts = () if self.module is None else self.module.modules()
        only_once = (is_cell and not op.repeatable) or any(map(is_hooked, parts))
        return Kernel(op, call, self.module, list(_weights_of(self.function)), is_cell=is_cell, only_once=only_once)

    def _with_compiled(
        self, call: Callable[..., Sequence[torch.Tensor]], op: Op
    ) -> Callable[..., Sequence[torch.Tensor]]:
        """The batched function with its elementwise work compiled, which is called wherever it can be."""
        # Inductor is large, and most programs do without it.
        from foldloom.tracing.cells.compiled import can_run, fused

        parts = () if self.module is None else tuple(self.module.modules())
        if is_any_autocast_enabled() or any(map(is_hooked, parts)):
            return call
        device = self.device or torch.get_default_device()
        training = tuple([part.training for part in parts])
        key = (op.inputs, op.settings, self.training, training, torch.get_num_threads(), device)
        # Weights may be replaced, tied, or made of another dtype behind our back.
        tables = [table for part in parts for table in (part._parameters, part._buffers)]
        weights = [(id(w), w.dtype, w.shape) for table in tables for w in table.values() if w is not None]
        known, compiled = self._compiled.get(key, (None, call))
        if known != (parts, weights):
            try:
                compiled = fused(call, op.inputs, self.module, device)
            except Exception as error:
                reason = str(error).strip().split("\n")[0]
                raise CellError(
                    f"cell {self.label} cannot be compiled for ({', '.join(map(repr, op.inputs))}): {reason}. Leave out "
                    "`compile=True`, or move what stands in the way out of the cell"
                ) from error
            self._compiled[key] = (parts, weights), compiled

        def call_compiled(*operands: torch.Tensor) -> Sequence[torch.Tensor]:
            return compiled(*operands) if can_run(operands, device) else call(*operands)

        return call_compiled

    def _ragged_form(self, types: tuple[Type, ...]) -> Callable[..., Any]:
        assert isinstance(self.function, torch.nn.Module), "only torch's own modules take ragged values"
        form = batched_module(self.function, types, True)
        assert form is not None, "a ragged call is only recorded where there is a rule for it"
        return form

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Cell:
        # The weights change their dtype or device, and what the cell returns may change with them.
        self._signatures.clear()
        self._compiled.clear()
        if isinstance(self.function, torch.nn.Module):
            self.function._apply(fn, recurse)
        return self

    def train(self, mode: bool = True) -> Cell:
        if scope.recorder is not None and self.module is not None:
            scope.recorder.guards.check_mode(self.module, mode)
        super().train(mode)
        if isinstance(self.function, torch.nn.Module):
            self.function.train(mode)
        return self

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            function = self.__dict__.get("function")
            function = function() if isinstance(function, weakref.ref) else function
            if isinstance(function, torch.nn.Module):
                return getattr(function, name)
            raise

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        if isinstance(self.function, torch.nn.Module):
            self.function._save_to_state_dict(destination, prefix, keep_vars)
        else:
            super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        if isinstance(self.function, torch.nn.Module):
            self.function._load_from_state_dict(*args, **kwargs)
        else:
            super()._load_from_state_dict(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_signatures": {}, "_modes_tried": set(), "_compiled": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # A cell that arrives in another process answers for the plans of the one it came from. A copy within one process
        # is a cell of its own.
        key = self.key if self.key not in _cell_of_key else self._new_key()
        self._take_key(key)

    def __set_name__(self, owner: type, name: str) -> None:
        raise TypeError(
            f"fl.cell cannot decorate a method: in {owner.__name__}.__init__ write `self.{name} = fl.cell(self._{name})`"
        )

    def extra_repr(self) -> str:
        return self.label


def _weights_of(function: Any) -> Iterator[torch.Tensor]:
    """The parameters of a module, or what a function finds around it: tensors that need gradients, parameters of modules."""
    module = module_of(function)
    if module is not None:
        yield from module.parameters()
    code = getattr(function, "__code__", None)
    if code is None:
        return
    around = [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]
    for found in (*around, *[function.__globals__.get(name) for name in code.co_names]):
        if isinstance(found, torch.nn.Module):
            yield from found.parameters()
        elif is_tensor(found):
            yield found


def cell(function: Callable[..., Any], *, compile: bool = False) -> Cell:
    """Mark a function or module as a unit of batching.

    Its positional arguments and its results are tensors, or tuples, lists and dicts of tensors, with the batch as the first
    dimension; keyword arguments are settings, and calls with different settings run in different steps. The cell itself
    is called with the arguments of one example: tensors, numpy arrays, Python numbers, results of other cells.

    >>> import torch, foldloom as fl
    >>> add = fl.cell(lambda x, y: x + y)
    >>> add(torch.tensor(1.0), 2.0)
    tensor(3.)
    >>> fl.batch(lambda x: add(add(x, x), x))([1, 10, 100])
    [tensor(3), tensor(30), tensor(300)]

    With ``compile=True`` its elementwise work is compiled, forward and backward, when it first runs, which takes some seconds and a C++
    compiler (what was compiled is kept on disk). What it computes may then depend on its arguments, weights and training mode alone:
    anything else that it reads stays as it was.
    """
    if isinstance(function, Cell):
        if compile and not function.is_compiled:
            raise ArgumentError(f"{function.label} is a cell already: write `compile=True` where it is made one")
        return function
    if not callable(function):
        raise ArgumentError(f"fl.cell takes a function or a module, not {type(function).__name__}")
    return Cell(function, compile=compile)


def cell_with_key(key: str) -> Cell | None:
    """The living cell of this process that has the key."""
    return _cell_of_key.get(key)


def to_tensor(value: Any, cell: Cell, device: torch.device | None) -> torch.Tensor:
    if type(value) is LazyTensor:
        return value._tensor()
    if isinstance(value, torch.Tensor):
        return value
    try:
        return torch.as_tensor(value, device=device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(unbatchable(cell, value)) from error


def unbatchable(cell: Cell, value: object) -> str:
    return (
        f"cell {cell.label} was given {value!r:.60} ({type(value).__name__}), which cannot be batched. Positional arguments are "
        "tensors, numpy arrays, numbers, results of cells, or tuples, lists and dicts of them; pass settings by keyword"
    )


def _no_arguments(cell: Cell) -> ArgumentError:
    return ArgumentError(
        f"cell {cell.label} was called with nothing to batch: give it at least one positional argument"
    )
