"""What a step calls, and what is checked of its answer."""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from foldloom.errors import CellError, CellOutputError
from foldloom.graph import Op, Type
from foldloom.graph.ragged import Ragged
from foldloom.torch_private import TorchDispatchMode


def spare_hooks(weights: Sequence[torch.Tensor]) -> None:
    """Torch calls hooks of a tensor with None, if the graph leads to it and no gradient does. One by one, the graph of a loss does not lead
    to a weight that only other examples or results use; so they are called with gradients only."""
    for weight in weights:
        hooks: Any = weight._backward_hooks
        for number, hook in hooks.items() if hooks else ():
            if type(hook) is not _SparedHook:
                hooks[number] = _SparedHook(hook)


@contextmanager
def without_hooks(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Within it, hooks of these tensors are not called."""
    hooked: list[Any] = [tensor for tensor in tensors if tensor._backward_hooks]
    hooks = [tensor._backward_hooks for tensor in hooked]
    try:
        for tensor in hooked:
            tensor._backward_hooks = None
        yield
    finally:
        for tensor, of_tensor in zip(hooked, hooks, strict=True):
            tensor._backward_hooks = of_tensor


class _SparedHook:
    """A hook of the user's."""

    def __init__(self, hook: Callable[[torch.Tensor], Any]) -> None:
        functools.update_wrapper(self, hook)
        self._hook = hook

    def __call__(self, grad: torch.Tensor | None) -> Any:
        return None if grad is None else self._hook(grad)


class Kernel:
    """The batched function of one op: blocks of operands in, blocks of outputs out, the batch dimension first.

    Ragged operands and outputs are `Ragged`. ``module`` is where its weights live, if it has any; an automatic cell may have several.
    """

    def __init__(
        self,
        op: Op,
        call: Callable[..., Sequence[Any]],
        module: torch.nn.Module | None = None,
        weights: Sequence[torch.Tensor] = (),
        *,
        is_cell: bool = False,
        only_once: bool = False,
    ) -> None:
        self.op = op
        self.call = call
        self.module = module
        self.modules: tuple[torch.nn.Module, ...] = () if module is None else (module,)
        self.weights = tuple([weight for weight in weights if weight.requires_grad])
        """The weights that may get gradients from it."""
        spare_hooks(self.weights)
        self.is_cell = is_cell
        """Whether it is code of the user's, of which only operands and outputs are seen."""
        self.only_once = only_once
        """Whether to run it again would be seen: it draws random numbers, or calls hooks."""
        self.alone: Callable[..., Any] | None = None
        """The function for one example without a batch, if there is one: it knows what is raised one by one."""
        self.table: int | None = None
        """How many places there are that indices among the operands may name."""
        self.form: object = call
        """The batched function itself, which knows how it runs."""
        self.is_ragged = any(type.ragged for type in (*op.inputs, *op.outputs))
        self.ragged_inputs = [type.ragged for type in op.inputs]
        self.ragged_outputs = [type.ragged for type in op.outputs]
        self._expected = [(type.row.shape, dtype_of(type)) for type in op.outputs]

    def without_drawing(self, device: torch.device) -> Kernel:
        """The same for members that stand for several each, which would all get the same random numbers."""

        def call(*operands: Any) -> Sequence[Any]:
            before = random_state(device)
            outputs = self.call(*operands)
            # Another thread may have drawn: then it takes a closer look.
            if not torch.equal(random_state(device), before) and (is_only_thread() or draws(self.call, operands)):
                raise _drawn([self.op.label])
            return outputs

        kernel = copy.copy(self)
        kernel.call = call
        return kernel

    def check(self, outputs: Sequence[torch.Tensor], counts: Sequence[int]) -> None:
        """An arena would take a wrong dtype or a broadcastable shape without a word; so ask before writing."""
        if len(outputs) != len(self._expected):
            raise CellOutputError(
                f"cell {self.op.label} returned {len(outputs)} tensors for {counts[0]} members, but {len(self._expected)} when "
                "its types were inferred; it must return the same number for every batch"
            )
        for output, count, (shape, dtype) in zip(outputs, counts, self._expected, strict=True):
            if output.shape != (count, *shape) or output.dtype is not dtype:
                expected = Type((count, *shape), _name(dtype))
                raise CellOutputError(
                    f"cell {self.op.label} returned {describe(output)} for {count} members; expected {expected}. Each output must "
                    "have the batch as its first dimension, and shape and dtype that do not depend on the values or on "
                    "how many members there are"
                )


@contextmanager
def without_drawing(labels: Sequence[str], device: torch.device) -> Iterator[None]:
    """Within it nobody may draw random numbers, because cells of these names compute once what is asked several times."""
    before = random_state(device)
    yield
    if not torch.equal(random_state(device), before):
        raise _drawn(labels)


def outside_inference_mode() -> AbstractContextManager[None]:
    """For buffers and inputs: tensors made in inference mode would not notice a cell that changes its arguments."""
    return _outside_inference_mode() if torch.is_inference_mode_enabled() else nullcontext()


@contextmanager
def _outside_inference_mode() -> Iterator[None]:
    with torch.inference_mode(False), torch.set_grad_enabled(False):
        yield


def is_only_thread() -> bool:
    """Whether a change of the random state must be of our own making."""
    return threading.active_count() == 1


def draws(call: Callable[..., Any], operands: Sequence[Any]) -> bool:
    """Whether a function asks for random numbers, by the operations that it calls."""
    notes = NotesDraws()
    with torch.no_grad(), notes:
        call(*operands)
    return bool(notes.names)


class NotesDraws(TorchDispatchMode):
    """Notes the operations within that ask for random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def _drawn(labels: Sequence[str]) -> CellError:
    return CellError(
        f"random numbers were drawn where {' and '.join(labels)} compute once what is asked several times: a cell that drew none "
        "when it was recorded draws them now. Record its examples anew"
    )


def member_of(operand: torch.Tensor | Ragged, member: int) -> torch.Tensor | Ragged:
    """What a step of this one member would be given."""
    if isinstance(operand, torch.Tensor):
        return operand[member : member + 1]
    start, length = int(operand.lengths[:member].sum()), int(operand.lengths[member])
    return Ragged(operand.values[start : start + length], operand.lengths[member : member + 1])


def random_state(device: torch.device | None) -> torch.Tensor:
    """Where the random numbers of a device stand."""
    if device is None or device.type in ("cpu", "meta"):
        return torch.get_rng_state()
    return torch.get_device_module(device).get_rng_state(device)  # type: ignore[no-any-return]


def dtype_of(type: Type) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, type.dtype)
    return dtype


def type_of(tensor: torch.Tensor) -> Type:
    """The type of one unbatched tensor."""
    return Type(tensor.shape, _name(tensor.dtype))


def describe(tensor: torch.Tensor) -> str:
    return repr(type_of(tensor))


@functools.cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
