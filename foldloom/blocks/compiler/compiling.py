"""`fb.compile`: from a block to a module."""

from __future__ import annotations

from typing import Any

from foldloom.blocks.block import convert_to_block
from foldloom.blocks.compiler.model import Model
from foldloom.planning.schedulers import Scheduler


def compile(root: Any, *, scheduler: Scheduler | None = None) -> Model:
    """A module that applies a block to a batch of examples.

    >>> from foldloom import blocks as fb
    >>> model = fb.compile(fb.Map(fb.Scalar()) >> fb.Sum())
    >>> model([[1, 2, 3], [], [4]])
    tensor([6., 0., 4.])
    """
    return Model(convert_to_block(root), scheduler=scheduler)
