"""Changes of the default dtype: calls that follow are recorded in another mode."""

from __future__ import annotations

import functools
from typing import Any

import torch

from foldloom.tracing.scope import scope

_set: Any = torch.set_default_dtype


@functools.wraps(_set)
def _set_and_tell(dtype: torch.dtype, /) -> None:
    _set(dtype)
    if scope.recorder is not None:
        scope.recorder.graph.autocast = True  # the next call looks at the mode


def watch_default_dtype() -> None:
    """From the first recording on, `torch.set_default_dtype` tells the recorder. To ask before each call would take too long."""
    if torch.set_default_dtype is not _set_and_tell:
        torch.set_default_dtype = _set_and_tell
