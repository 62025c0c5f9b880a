"""Calls of torch that handles do not see by themselves: of functions of weights alone, of modules, of autograd's functions."""

import os
import sys
import threading
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

import torch

from foldloom.torch_private import DYNAMO
from foldloom.tracing.interception.autograd_functions import watch_functions
from foldloom.tracing.interception.default_dtype import watch_default_dtype
from foldloom.tracing.interception.modules import watch_modules
from foldloom.tracing.interception.parameters import watch_parameters
from foldloom.tracing.interception.transforms import watch_transforms
from foldloom.tracing.interception.unreached import watch_hooks


def watch_all() -> None:
    """Before anything is recorded."""
    watch_modules()
    watch_functions()
    watch_default_dtype()
    watch_transforms()
    watch_parameters()
    watch_hooks()


class uncompiled:  # noqa: N801 (used like a function)
    """Functions that `torch.compile` made run as they were written: what they call is batched instead of compiled.

    That is a setting of the whole process. Batches of several threads overlap, so the first sets it and the last puts it back.
    """

    _lock = threading.Lock()
    _batches: ClassVar[list[int]] = []
    """The threads of the batches that are under way."""
    _stance: AbstractContextManager[object] = nullcontext()

    def __enter__(self) -> None:
        with uncompiled._lock:
            if not uncompiled._batches:
                # If Dynamo was never imported, nothing has been compiled; importing it takes a second.
                is_there = DYNAMO in sys.modules
                uncompiled._stance = torch.compiler.set_stance("force_eager") if is_there else nullcontext()
                uncompiled._stance.__enter__()
            uncompiled._batches.append(threading.get_ident())

    def __exit__(self, *_: object) -> None:
        with uncompiled._lock:
            uncompiled._batches.remove(threading.get_ident())
            if not uncompiled._batches:
                uncompiled._stance.__exit__(None, None, None)

    @staticmethod
    def after_fork() -> None:
        """The batches of other threads do not go on in the child."""
        uncompiled._lock = threading.Lock()
        had_batches = bool(uncompiled._batches)
        uncompiled._batches = [thread for thread in uncompiled._batches if thread == threading.get_ident()]
        if had_batches and not uncompiled._batches:
            uncompiled._stance.__exit__(None, None, None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=uncompiled.after_fork)
