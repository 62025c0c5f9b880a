"""Buffers kept between batches.

A fresh buffer of many megabytes costs a page fault for every 4 kB of it, every time. The pool keeps the memory of past buffers
and hands it out again once nobody else holds it, which it knows from the storage's own reference count: nothing has
to be given back, and a tensor that a user keeps is never overwritten.

When no kept buffer is large enough, the idle ones are let go: what is kept is at most about what one batch uses at once.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

import torch

SMALLEST = 1 << 18
"""Below this many bytes, malloc keeps memory by itself."""

HEADROOM = 1.25
"""Batches differ in size: a buffer is made a little larger than asked, so that it serves the next one too."""

_kept: list[torch.UntypedStorage] = []
_lock = threading.Lock()


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Like ``torch.empty``, from kept memory where there is any. Devices other than the CPU have a pool of their own."""
    size = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or size < SMALLEST or torch.is_inference_mode_enabled():
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    with _lock:
        idle = [storage for storage in _kept if torch._C._storage_Use_Count(storage._cdata) == 1]
        storage = min((s for s in idle if s.nbytes() >= size), key=lambda s: s.nbytes(), default=None)
        if storage is None:
            for small in idle:
                _kept[:] = [other for other in _kept if other is not small]
            storage = torch.UntypedStorage(int(size * HEADROOM))
            _kept.append(storage)
        return torch.empty(0, dtype=dtype).set_(storage, 0, tuple(shape))  # type: ignore[call-overload, no-any-return]


def zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return empty(shape, dtype, device).zero_()
