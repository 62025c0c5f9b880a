"""What the current thread is doing: recording, running a cell, or neither; and the modes of torch that a call depends on."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import CodeType, FrameType
from typing import Any, Protocol

import torch

from foldloom.torch_private import DisableTorchFunction, is_any_autocast_enabled


class ActiveRecorder(Protocol):
    """What modules below the recorder know of it. A handle is a `LazyTensor`."""

    @property
    def graph(self) -> Any: ...
    @property
    def guards(self) -> Any: ...
    @property
    def outside(self) -> Any: ...
    @property
    def numbers(self) -> Any: ...
    @property
    def names_cells(self) -> bool: ...
    @property
    def has_gradients(self) -> bool: ...
    def call(self, cell: Any, args: tuple[Any, ...], settings: dict[str, Any]) -> Any: ...
    def call_function(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any] | None) -> Any: ...
    def call_module(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...
    def call_with_values(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...
    def set_item(self, target: Any, index: Any, value: Any) -> None: ...
    def set_data(self, target: Any, value: Any) -> None: ...
    def own_tensor(self, handle: Any) -> torch.Tensor: ...
    def array_of(self, handle: Any) -> Any: ...
    def device_of(self, handle: Any) -> torch.device: ...
    def grad_of(self, handle: Any) -> torch.Tensor | None: ...
    def note_change(self, values: tuple[int, ...], is_ragged: bool, made: int) -> None: ...
    def strides_of(self, handle: Any) -> tuple[int, ...] | None: ...
    def note_flag(self, tensor: torch.Tensor) -> None: ...
    def derived_under(self, handle: Any) -> torch.Tensor | None: ...
    def note_change_of_derived(self, tensor: torch.Tensor, made: Any) -> None: ...
    def demand(self, handles: Sequence[Any], form: Any) -> list[Any]: ...
    def number_of(self, handle: Any) -> Any: ...
    def backward(self, handle: Any, args: Any, kwargs: Any) -> None: ...
    def give(self, tensor: torch.Tensor) -> Any: ...
    def lift(self, tensor: torch.Tensor, *, ragged: bool | None = None) -> Any: ...
    def own(self, handle: Any, *, ragged: bool | None = False, cell: Any = None) -> Any: ...
    def constant(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any: ...
    def number(self, value: Any) -> Any: ...
    def stand_for(self, handle: Any, tensor: torch.Tensor) -> None: ...
    def dense(self, handle: Any) -> Any: ...
    def rows_of(self, handle: Any) -> list[Any]: ...
    def keep_together(self, handle: Any) -> None: ...
    def check_may_rearrange(self) -> None: ...
    def cuts(self, handle: Any) -> bool: ...
    def is_given(self, handle: Any) -> bool: ...
    def is_derived(self, value: object) -> bool: ...
    def read_given(self, handle: Any) -> torch.Tensor | None: ...
    def tensor_given_as(self, handle: Any) -> torch.Tensor | None: ...
    def where(self) -> str: ...


class _Scope(threading.local):
    recorder: ActiveRecorder | None = None
    """Where cells and functions are recorded; None while nothing is being recorded."""
    line: tuple[CodeType, int] | None = None
    """The line of a function that is being captured, which has no frame."""
    undo: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] | None = None
    """While somebody only looks at what a program does: tensors that it has changed, each with its memory and the numbers before."""
    computes: bool = False
    """Whether what is recorded is being computed."""
    running: tuple[torch.nn.Module, ...] = ()
    """The cells whose functions are being called, outermost first."""


scope = _Scope()


def note_for_undo(tensors: Iterable[torch.Tensor]) -> None:
    """Tensors of the user's are about to be changed in place."""
    if scope.undo is None:
        return
    with DisableTorchFunction(), torch.no_grad():
        for tensor in tensors:
            if id(tensor) not in scope.undo and tensor.layout is torch.strided and not tensor.is_inference():
                scope.undo[id(tensor)] = (tensor, tensor.data, tensor.clone())


class recording_into:  # noqa: N801 (used like a function)
    """What is called within is recorded; without a recorder, it runs at once.

    A class, because entering a generator takes several times as long.
    """

    __slots__ = ("_outer", "_recorder")

    def __init__(self, recorder: ActiveRecorder | None) -> None:
        self._recorder = recorder

    def __enter__(self) -> None:
        self._outer = scope.recorder
        scope.recorder = self._recorder

    def __exit__(self, *_: object) -> None:
        scope.recorder = self._outer


def recording_paused() -> recording_into:
    """What is called within runs at once."""
    return recording_into(None)


class computing:  # noqa: N801 (used like a function)
    """What is called within computes what was recorded, for many examples or for one. Nothing is recorded."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = scope.recorder, scope.computes
        scope.recorder, scope.computes = None, True

    def __exit__(self, *_: object) -> None:
        scope.recorder, scope.computes = self._before


unwatched = DisableTorchFunction
"""Within it torch calls no function mode. Asking a tensor for its shape is much faster there."""


_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_PROGRAMS = tuple([os.path.join(_OURS, room) + os.sep for room in ("models", "tasks")])
"""Packages of models, which count as the user's code."""
_TORCH = os.sep + "torch" + os.sep


def user_frame() -> FrameType:
    """The innermost frame of the user's code that is being run."""
    frame = sys._getframe(1)
    while frame.f_back is not None and is_machinery(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def is_machinery(file: str) -> bool:
    """Whether a file is Foldloom's or torch's rather than the user's."""
    return _TORCH in file or (file.startswith(_OURS) and not file.startswith(_PROGRAMS))


def user_line() -> str:
    """The file and line of the user's code that is being run."""
    if scope.line is not None:
        return f"{scope.line[0].co_filename}:{scope.line[1]}"
    frame = user_frame()
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


Autocast = tuple[torch.dtype | None, ...]
Mode = tuple[bool, Autocast, torch.dtype]
"""The grad mode, for each kind of device the dtype of autocast, and the default dtype."""


_NO_AUTOCAST: Autocast = (None, None)


def autocast_state() -> Autocast:
    if not is_any_autocast_enabled():
        return _NO_AUTOCAST
    return tuple(
        [torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None for kind in ("cpu", "cuda")]
    )


def current_mode() -> Mode:
    return torch.is_grad_enabled(), autocast_state(), torch.get_default_dtype()


@contextmanager
def in_mode(mode: Any) -> Iterator[None]:
    """The mode that held where a call was recorded; None if it holds for the whole batch."""
    with ExitStack() as stack:
        if mode is not None:
            grad_enabled, autocast, default = mode
            if default is not torch.get_default_dtype():
                stack.callback(torch.set_default_dtype, torch.get_default_dtype())
                torch.set_default_dtype(default)
            stack.enter_context(torch.set_grad_enabled(grad_enabled))
            for kind, dtype in zip(("cpu", "cuda"), autocast, strict=True):
                if dtype is not None:
                    stack.enter_context(torch.autocast(kind, dtype))
                elif torch.is_autocast_enabled(kind):
                    stack.enter_context(torch.autocast(kind, enabled=False))
        yield
