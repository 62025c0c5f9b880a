"""What the current thread is doing: recording, running a cell, or neither."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

import torch

from foldloom.collector import collector_resting

if TYPE_CHECKING:
    from foldloom.lazy.cell import Cell
    from foldloom.lazy.recorder import Recorder


class _Scope(threading.local):
    recorder: Recorder | None = None
    """Where cells and functions are recorded; None while nothing is being recorded."""
    running: tuple[Cell, ...] = ()
    """The cells whose functions are being called, outermost first."""


scope = _Scope()


@contextmanager
def recording_into(recorder: Recorder) -> Iterator[None]:
    """What is called within is recorded."""
    outer = scope.recorder
    scope.recorder = recorder
    try:
        with collector_resting():
            yield
    finally:
        scope.recorder = outer


@contextmanager
def recording_paused() -> Iterator[None]:
    """What is called within runs at once."""
    outer = scope.recorder
    scope.recorder = None
    try:
        yield
    finally:
        scope.recorder = outer


_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_PROGRAMS = tuple([os.path.join(_OURS, room) + os.sep for room in ("models", "tasks")])
"""Rooms that hold models, which are to Foldloom what the user's are."""
_TORCH = os.sep + "torch" + os.sep


def user_frame() -> FrameType:
    """The innermost frame of the user's code that is being run."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_machinery(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _is_machinery(file: str) -> bool:
    return _TORCH in file or (file.startswith(_OURS) and not file.startswith(_PROGRAMS))


def user_line() -> str:
    """The file and line of the user's code that is being run."""
    frame = user_frame()
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def autocast_state() -> tuple[object, ...]:
    return tuple(
        [torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None for kind in ("cpu", "cuda")]
    )
