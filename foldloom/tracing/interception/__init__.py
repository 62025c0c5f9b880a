"""Calls of torch that handles do not see by themselves: of functions of weights alone, of modules, of autograd's functions."""

import sys
from contextlib import AbstractContextManager, nullcontext

import torch

from foldloom.torch_private import DYNAMO
from foldloom.tracing.interception.autograd_functions import watch_functions
from foldloom.tracing.interception.default_dtype import watch_default_dtype
from foldloom.tracing.interception.modules import watch_modules
from foldloom.tracing.interception.parameters import watch_parameters
from foldloom.tracing.interception.transforms import watch_transforms


def watch_all() -> None:
    """Before anything is recorded."""
    watch_modules()
    watch_functions()
    watch_default_dtype()
    watch_transforms()
    watch_parameters()


def uncompiled() -> AbstractContextManager[object]:
    """Functions that `torch.compile` made run as they were written: what they call is batched instead of compiled."""
    # If Dynamo was never imported, nothing has been compiled; importing it takes a second.
    return torch.compiler.set_stance("force_eager") if DYNAMO in sys.modules else nullcontext()
