"""Buffers kept between batches.

A fresh buffer of many megabytes costs a page fault for every 4 kB of it, every time. The pool keeps the memory of past buffers
and hands it out again once nobody else holds it, which it knows from the storage's own reference count: nothing has
to be given back, and a tensor that a user keeps is never overwritten.

When no kept buffer is large enough, the idle ones are let go, and so is any that has served no request for a while.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
from collections.abc import Sequence

import torch

from foldloom.torch_private import storage_use_count

SMALLEST = 1 << 18
"""Below this many bytes, malloc keeps memory by itself."""

HEADROOM = 1.25
"""Batches differ in size: a buffer is made a little larger than asked, so that it serves the next one too."""

PATIENCE = 64
"""A buffer that served none of the last so many requests is let go."""


class _Kept:
    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.storage = storage
        self.last_request = 0

    @property
    def is_idle(self) -> bool:
        """Nobody else holds the memory, in this process or in another."""
        return storage_use_count(self.storage._cdata) == 1 and not self.storage.is_shared()


_kept: list[_Kept] = []
_requests = itertools.count(1)
_lock = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_lock._at_fork_reinit)  # type: ignore[attr-defined]


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Like ``torch.empty``, from kept memory where there is any. Devices other than the CPU have a pool of their own."""
    size = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or size < SMALLEST or torch.is_inference_mode_enabled():
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    with _lock:
        request = next(_requests)
        idle = [kept for kept in _kept if kept.is_idle]
        fitting = [kept for kept in idle if kept.storage.nbytes() >= size]
        if fitting:
            chosen = min(fitting, key=lambda kept: kept.storage.nbytes())
            stale = [kept for kept in idle if request - kept.last_request > PATIENCE and kept is not chosen]
        else:
            chosen, stale = _Kept(torch.UntypedStorage(int(size * HEADROOM))), idle
            _kept.append(chosen)
        _kept[:] = [kept for kept in _kept if kept not in stale and not kept.storage.is_shared()]
        chosen.last_request = request
        return torch.empty(0, dtype=dtype, device="cpu").set_(chosen.storage, 0, tuple(shape))  # type: ignore[call-overload, no-any-return]


def zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return empty(shape, dtype, device).zero_()
