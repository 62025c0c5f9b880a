"""The blocks of a model as JSON, from which `foldloom.runtime` makes the same calls of cells without torch.

Each block describes itself (`Block.describe`). This module only numbers blocks, names cells and packs values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from foldloom.blocks.block import Block
from foldloom.blocks.compiler.model import Model
from foldloom.blocks.compiler.program import metrics_of
from foldloom.blocks.compiler.traversal import all_blocks
from foldloom.blocks.describing import Described, Describing
from foldloom.blocks.inference import known
from foldloom.blocks.printing import shortened
from foldloom.blocks.types import BlockType, SequenceType, TensorType, TupleType, VoidType
from foldloom.exporting.packing import packed
from foldloom.runtime.description import packed_array
from foldloom.runtime.portable import NotPortableError


def described_program(model: Model) -> Described:
    """All blocks of a model, numbered in the order of `all_blocks`. Raises `NotPortableError` for a block that needs torch."""
    blocks = list(all_blocks(model.root))
    to_json = _ToJson(model, blocks)
    return {
        "blocks": [_described(block, to_json) for block in blocks],
        "root": to_json.block(model.root),
        "gives": _gives(known(model.root.gives)),
        "metrics": dict.fromkeys(metrics_of(model.root), True),
    }


def _described(block: Block, to_json: Describing) -> Described:
    try:
        return {**block.describe(to_json), "says": shortened(block)}
    except NotPortableError as error:
        raise NotPortableError(f"{shortened(block)} cannot be described without torch: {error}") from error


class _ToJson(Describing):
    def __init__(self, model: Model, blocks: list[Block]) -> None:
        self._number = {block: number for number, block in enumerate(blocks)}
        self._cell_names, self._dtypes = model.cell_names, model.dtypes

    def block(self, part: Block) -> int:
        return self._number[part]

    def cell(self, block: Block) -> str:
        return self._cell_names[block]

    def value(self, value: Any) -> Any:
        return packed(value)

    def dtype(self, declared: str) -> str:
        return self._dtypes.get(declared, declared)

    def constant(self, value: Any, type: TensorType) -> Any:
        dtype = getattr(torch, self.dtype(type.dtype))
        return packed_array(torch.as_tensor(value).detach().cpu().to(dtype).expand(type.fixed()).numpy())

    def zeros(self, type: BlockType) -> Any:
        if isinstance(type, TensorType):
            return packed_array(np.zeros(type.fixed(), self.dtype(type.dtype)))
        if isinstance(type, TupleType):
            return {"tuple": [self.zeros(item) for item in type.items]}
        return [] if isinstance(type, SequenceType) else None


def _gives(type: BlockType) -> Any:
    """The nesting of the root's output."""
    if isinstance(type, TensorType):
        return "tensor"
    if isinstance(type, VoidType):
        return "nothing"
    if isinstance(type, (TupleType, SequenceType)):
        return ["tuple" if isinstance(type, TupleType) else "list", [_gives(part) for part in type.parts]]
    raise NotPortableError(f"the output {type} is no tensor")
