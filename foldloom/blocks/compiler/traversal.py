"""Walks over the blocks of a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from foldloom.blocks.block import Block


def all_blocks(root: Block) -> Iterator[Block]:
    """Every block that the root contains, parts before wholes, in a deterministic order."""
    seen: set[Block] = set()
    pending: list[tuple[Block, Iterator[Block]]] = [(root, iter([part for _, part in root.parts]))]
    seen.add(root)
    while pending:
        block, parts = pending[-1]
        part = next(parts, None)
        if part is None:
            pending.pop()
            yield block
        elif part not in seen:
            seen.add(part)
            pending.append((part, iter([inner for _, inner in part.parts])))


def shared_blocks(root: Block) -> set[Block]:
    """The blocks that are part of several others."""
    users = Counter([part for block in all_blocks(root) for _, part in block.parts])
    return {block for block, count in users.items() if count > 1}
